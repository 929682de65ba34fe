#include "bench/plan/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::plan {
namespace {

constexpr double kWidth = 640.0;
constexpr double kHeight = 320.0;
constexpr double kLeft = 72.0;
constexpr double kRight = 16.0;
constexpr double kTop = 34.0;
constexpr double kBottom = 48.0;
constexpr int kTicks = 5;
// Beside the plot, if there are several series.
constexpr double kLegendWidth = 320.0;
constexpr double kLegendLine = 14.0;
constexpr size_t kMostInLegend = 18;
// Colours that people with red-green blindness can tell apart (Okabe and Ito).
constexpr absl::string_view kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                          "#e69f00", "#56b4e9", "#000000", "#999999"};

absl::string_view ColourOf(size_t series) {
  return kColours[series % std::size(kColours)];
}

// When the colours are used up, they repeat with other marks: filled and joined first, then hollow and
// dashed.
bool HasPlainMarks(size_t series) {
  return series / std::size(kColours) % 2 == 0;
}

std::string CircleAt(double x, double y, size_t series, absl::string_view title) {
  return absl::StrFormat(
      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" stroke=\"%s\" stroke-width=\"1.6\">"
      "<title>%s</title></circle>\n",
      x, y, HasPlainMarks(series) ? ColourOf(series) : "#ffffff", ColourOf(series), XmlText(title));
}

std::string LineThrough(absl::string_view points, size_t series) {
  return absl::StrFormat("<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\"%s points=\"%s\"/>\n",
                         ColourOf(series), HasPlainMarks(series) ? "" : " stroke-dasharray=\"5 3\"", points);
}

std::string TextAt(double x, double y, absl::string_view anchor, absl::string_view text,
                   absl::string_view more = "") {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>%s</text>\n", x, y, anchor, more,
                         XmlText(text));
}

}  // namespace

std::string XmlText(absl::string_view text) {
  std::string clean;
  for (const char c : text) {
    // Characters that XML does not allow, not even escaped.
    if (static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t') clean += c;
  }
  return absl::StrReplaceAll(clean, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::vector<double> TicksTo(double most, int count) {
  if (!(most > 0.0) || !std::isfinite(most)) return {0.0, 1.0};
  const double rough = most / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10.0 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto last = static_cast<int>(std::ceil(most / step - 1e-9));
  for (int i = 0; i <= last; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string Plot::ToSvg() const {
  double most_x = 0.0;
  double most_y = 0.0;
  for (const PlotSeries& one : series) {
    for (const auto& [x, y] : one.points) {
      most_x = std::max(most_x, x);
      most_y = std::max(most_y, y);
    }
  }
  const std::vector<double> x_ticks = TicksTo(most_x, kTicks);
  const std::vector<double> y_ticks = TicksTo(most_y, kTicks);
  const auto at_x = [&](double x) { return kLeft + x / x_ticks.back() * (kWidth - kLeft - kRight); };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - y / y_ticks.back() * (kHeight - kTop - kBottom);
  };

  const double width = kWidth + (series.size() > 1 ? kLegendWidth : 0.0);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" "
      "role=\"img\" font-family=\"sans-serif\" font-size=\"11\">\n",
      width, kHeight, width, kHeight);
  absl::StrAppend(&svg, "<title>", XmlText(title), "</title>\n");
  absl::StrAppend(&svg, TextAt(kLeft, 14.0, "start", title, " font-weight=\"bold\""));
  for (const double tick : y_ticks) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#dddddd\"/>\n",
                          kLeft, kWidth - kRight, at_y(tick), at_y(tick));
    absl::StrAppend(&svg, TextAt(kLeft - 6.0, at_y(tick) + 4.0, "end", absl::StrCat(tick)));
  }
  for (const double tick : x_ticks) {
    absl::StrAppend(&svg, TextAt(at_x(tick), kHeight - kBottom + 16.0, "middle", absl::StrCat(tick)));
  }
  absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#444444\"/>\n",
                        kLeft, kWidth - kRight, kHeight - kBottom, kHeight - kBottom);
  absl::StrAppend(&svg, TextAt((kLeft + kWidth) / 2.0, kHeight - 12.0, "middle", x_label));
  absl::StrAppend(&svg, TextAt(14.0, kHeight / 2.0, "middle", y_label,
                               absl::StrFormat(" transform=\"rotate(-90 14 %.1f)\"", kHeight / 2.0)));
  for (size_t i = 0; i < series.size(); ++i) {
    std::string path;
    for (const auto& [x, y] : series[i].points) {
      absl::StrAppendFormat(&path, "%s%.1f,%.1f", path.empty() ? "" : " ", at_x(x), at_y(y));
      if (!series[i].joined) absl::StrAppend(&svg, CircleAt(at_x(x), at_y(y), i, series[i].name));
    }
    if (series[i].joined && !path.empty()) absl::StrAppend(&svg, LineThrough(path, i));
    if (series.size() < 2 || i > kMostInLegend) continue;
    const double y = kTop + 4.0 + kLegendLine * static_cast<double>(i);
    if (i == kMostInLegend) {
      absl::StrAppend(&svg,
                      TextAt(kWidth + 28.0, y, "start", absl::StrCat("and ", series.size() - i, " more")));
      continue;
    }
    absl::StrAppend(&svg,
                    series[i].joined ? LineThrough(absl::StrFormat("%.1f,%.1f %.1f,%.1f", kWidth + 2.0,
                                                                   y - 4.0, kWidth + 22.0, y - 4.0),
                                                   i)
                                     : CircleAt(kWidth + 12.0, y - 4.0, i, series[i].name),
                    TextAt(kWidth + 28.0, y, "start", series[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace tandem::plan
