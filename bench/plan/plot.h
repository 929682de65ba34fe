#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::plan {

// Escapes text for XML, between tags or quotes.
std::string XmlText(absl::string_view text);

// Points of one colour, joined or not.
struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool joined = true;
};

// An SVG element with axes from 0, ticks, and a legend beside it if there are several series.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;

  std::string ToSvg() const;
};

// Round numbers from 0 to at least `most`, about `count` of them. {0, 1} if there is nothing to show.
std::vector<double> TicksTo(double most, int count);

}  // namespace tandem::plan
