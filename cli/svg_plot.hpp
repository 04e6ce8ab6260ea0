// Plots as SVG text that needs nothing else: lines and points on logarithmic axes, and tables of coloured cells.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace scaledmm::cli {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // positive; by ascending x for lines
  bool is_line = true;                            // false: points alone
  bool is_dashed = false;
};

// Both axes are logarithmic.
std::string line_plot(const std::string& title, const std::string& x_label, const std::string& y_label,
                      const std::vector<PlotSeries>& series);

struct HeatMap {
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<std::optional<double>>> values;  // [row][column]
};

// Ratios: 1 is white, more is green, less is red; two are far apart at 2 and 1/2.
std::string heat_map(const std::string& title, const std::string& column_label, const HeatMap& map);

// Text as it may stand in HTML and SVG.
std::string escape_html(const std::string& text);

}  // namespace scaledmm::cli
