#include "cli/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace scaledmm::cli {
namespace {

constexpr double kPlotWidth = 460, kHeight = 400;
constexpr double kLeft = 70, kTop = 36, kBottom = 48;  // margins; the legend stands on the right
constexpr double kRight = kLeft + kPlotWidth;
constexpr double kLegendLine = 17, kLetterWidth = 6.2;
// Told apart by people who see colours differently (Okabe and Ito).
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                 "#e69f00", "#56b4e9", "#000000", "#7f7f00"};

// A logarithmic axis from data to pixels.
class Axis {
 public:
  Axis(double least, double most, double begin, double end) : begin_(begin), end_(end) {
    low_ = std::log10(least) - 0.05;
    high_ = std::log10(most) + 0.05;
  }
  double at(double value) const { return begin_ + (std::log10(value) - low_) / (high_ - low_) * (end_ - begin_); }
  // 1, 2 and 5 times powers of ten; powers of ten alone where that is too many.
  std::vector<double> ticks() const {
    const bool wide = high_ - low_ > 3.2;
    std::vector<double> result;
    for (int power = static_cast<int>(std::floor(low_)); power <= static_cast<int>(std::ceil(high_)); ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double value = digit * std::pow(10.0, power);
        const bool inside = std::log10(value) >= low_ && std::log10(value) <= high_;
        if (inside && (digit == 1.0 || !wide)) result.push_back(value);
      }
    }
    return result;
  }

 private:
  double begin_, end_, low_ = 0, high_ = 0;
};

std::string text(double x, double y, const std::string& content, const char* anchor, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escape_html(content));
}

std::string frame(double width, double height, const std::string& title, const std::string& body) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}{3}"
      "</svg>\n",
      width, height, text(kLeft, 20, title, "start", " font-size=\"14\" font-weight=\"bold\""), body);
}

std::string number(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  return value >= 1e4 ? fmt::format("{:g}k", value / 1e3) : fmt::format("{:g}", value);
}

std::string draw_axes(const Axis& x, const Axis& y, const std::string& x_label, const std::string& y_label) {
  const double bottom = kHeight - kBottom;
  std::string svg;
  for (const double tick : x.ticks()) {
    svg += fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", x.at(tick),
                       kTop, bottom);
    svg += text(x.at(tick), bottom + 16, number(tick), "middle");
  }
  for (const double tick : y.ticks()) {
    svg += fmt::format("<line y1=\"{0:.1f}\" y2=\"{0:.1f}\" x1=\"{1}\" x2=\"{2}\" stroke=\"#ddd\"/>\n", y.at(tick),
                       kLeft, kRight);
    svg += text(kLeft - 6, y.at(tick) + 4, number(tick), "end");
  }
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>\n", kLeft,
                     kTop, kRight - kLeft, bottom - kTop);
  svg += text((kLeft + kRight) / 2, kHeight - 12, x_label, "middle");
  svg += fmt::format("<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
                     (kTop + bottom) / 2, escape_html(y_label));
  return svg;
}

// Colours repeat after eight; then lines are dotted and points hollow.
struct Look {
  explicit Look(std::size_t index, bool is_dashed_) : colour(kColours[index % kColours.size()]) {
    const bool is_again = index >= kColours.size();
    dashes = is_dashed_ ? " stroke-dasharray=\"6 4\"" : is_again ? " stroke-dasharray=\"2 3\"" : "";
    fill = is_again ? "white" : colour;
  }

  const char* colour;
  const char* dashes;
  const char* fill;
};

std::string draw_series(const PlotSeries& series, const Look& look, const Axis& x, const Axis& y) {
  std::string svg, path;
  for (const auto& [a, b] : series.points) path += fmt::format("{:.1f},{:.1f} ", x.at(a), y.at(b));
  if (series.is_line) {
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path,
                       look.colour, look.dashes);
  }
  if (series.is_dashed) return svg;
  for (const auto& [a, b] : series.points) {
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\" stroke=\"{}\"><title>{}: {:g}, "
        "{:g}</title></circle>\n",
        x.at(a), y.at(b), look.fill, look.colour, escape_html(series.name), a, b);
  }
  return svg;
}

// Blends to green above 1 and to red below it.
std::string ratio_colour(double ratio) {
  const double strength = std::clamp(std::log2(ratio), -1.5, 1.5) / 1.5;
  const auto faded = [&](int full) { return static_cast<int>(255 - (255 - full) * std::abs(strength)); };
  return strength >= 0 ? fmt::format("rgb({},{},{})", faded(60), faded(170), faded(100))
                       : fmt::format("rgb({},{},{})", faded(220), faded(80), faded(70));
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string line_plot(const std::string& title, const std::string& x_label, const std::string& y_label,
                      const std::vector<PlotSeries>& series) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_least = kInfinity, x_most = 0, y_least = kInfinity, y_most = 0;
  for (const PlotSeries& one : series) {
    for (const auto& [a, b] : one.points) {
      x_least = std::min(x_least, a);
      x_most = std::max(x_most, a);
      y_least = std::min(y_least, b);
      y_most = std::max(y_most, b);
    }
  }
  if (x_most <= 0 || y_most <= 0) return {};
  const Axis x(x_least, x_most, kLeft, kRight), y(y_least, y_most, kHeight - kBottom, kTop);
  std::string body = draw_axes(x, y, x_label, y_label);
  double legend = kTop + 8, widest = 0;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const Look look(i, series[i].is_dashed);
    body += draw_series(series[i], look, x, y);
    const double left = kRight + 12;
    body += fmt::format(
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"3\"{}/>\n", left,
        left + 18, legend, legend, look.colour, look.dashes);
    body += text(left + 24, legend + 4, series[i].name, "start", " font-size=\"11\"");
    legend += kLegendLine;
    widest = std::max(widest, kLetterWidth * static_cast<double>(series[i].name.size()));
  }
  return frame(kRight + 48 + widest, std::max(kHeight, legend), title, body);
}

std::string heat_map(const std::string& title, const std::string& column_label, const HeatMap& map) {
  constexpr double kCellWidth = 64, kCellHeight = 24, kRowNames = 420, kHead = 58;
  std::string body = text(kRowNames - 8, kHead - 8, column_label, "end");
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    body += text(kRowNames + (static_cast<double>(c) + 0.5) * kCellWidth, kHead - 8, map.columns[c], "middle");
  }
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double top = kHead + static_cast<double>(r) * kCellHeight;
    body += text(kRowNames - 8, top + 16, map.rows[r], "end", " font-size=\"11\"");
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const std::optional<double>& value = map.values[r][c];
      if (!value) continue;
      const double left = kRowNames + static_cast<double>(c) * kCellWidth;
      body += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"white\"/>\n",
                          left, top, kCellWidth, kCellHeight, ratio_colour(*value));
      body += text(left + kCellWidth / 2, top + 16, fmt::format("{:.2f}", *value), "middle");
    }
  }
  const double width = kRowNames + static_cast<double>(map.columns.size()) * kCellWidth + 16;
  const double height = kHead + static_cast<double>(map.rows.size()) * kCellHeight + 12;
  return frame(width, height, title, body);
}

}  // namespace scaledmm::cli
