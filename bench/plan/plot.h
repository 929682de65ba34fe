#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::plan {

// Escapes text for XML, between tags or in quotes.
std::string XmlText(absl::string_view text);

// Points of one colour, with or without a line.
struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool joined = true;
};

// A plot as an SVG element: axes from 0, ticks, and a legend beside it if there are several series.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;

  std::string ToSvg() const;
};

// About `count` round numbers from 0 to at least `most`. {0, 1} if there is nothing to show.
std::vector<double> TicksTo(double most, int count);

}  // namespace tandem::plan
