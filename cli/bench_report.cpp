#include "cli/bench_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "cli/errors.hpp"
#include "cli/svg_plot.hpp"

namespace scaledmm::cli {
namespace {

// Somebody's time for a product.
struct Measurement {
  std::string scheme;
  std::int64_t m = 0, n = 0, k = 0;
  std::string who;
  double us = 0;
  std::optional<double> floor_us;
};

// How many times faster than a peer we were.
struct SpeedUp {
  std::string scheme, kernel, peer;
  std::int64_t m = 0, n = 0, k = 0;
  double ratio = 0;
};

struct Figures {
  std::vector<Measurement> measurements;
  std::vector<SpeedUp> speed_ups;
};

// Sizes, times and ratios, all of which stand on logarithmic axes; and shares and errors, which may be 0.
enum class Zero : bool { kRefused, kTaken };
double number(const Json& row, const char* key, Zero zero = Zero::kRefused) {
  constexpr double kLargest = 1e15;
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) {
    throw UsageError(fmt::format("a row of the document has no number {}", key));
  }
  const double value = found->get<double>();
  const bool is_measured = value > 0 || (value == 0 && zero == Zero::kTaken);
  if (!is_measured || value > kLargest) {
    throw UsageError(fmt::format("a row of the document has {} = {}, which nothing was measured to be", key, value));
  }
  return value;
}

std::string text(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_string()) {
    throw UsageError(fmt::format("a row of the document has no text {}", key));
  }
  return found->get<std::string>();
}

Measurement measurement(const Json& row, std::string scheme, std::string who, double us) {
  Measurement result;
  result.scheme = std::move(scheme);
  result.m = static_cast<std::int64_t>(number(row, "m"));
  result.n = static_cast<std::int64_t>(number(row, "n"));
  result.k = static_cast<std::int64_t>(number(row, "k"));
  result.who = std::move(who);
  result.us = us;
  if (row.contains("share_of_floor")) result.floor_us = number(row, "share_of_floor") * us;
  return result;
}

// A row of bench --output, or of bench/gpu, where "contender" says who it was.
void read_row(const Json& row, Figures& figures) {
  if (row.contains("contender")) {
    const std::string who = text(row, "contender"), scheme = text(row, "type");
    figures.measurements.push_back(measurement(row, scheme, who, number(row, "us")));
    const Measurement& at = figures.measurements.back();
    if (row.contains("speed_against_cublaslt") && !who.starts_with("cublaslt")) {
      figures.speed_ups.push_back({scheme, who, "cuBLASLt", at.m, at.n, at.k, number(row, "speed_against_cublaslt")});
    }
    return;
  }
  figures.measurements.push_back(
      measurement(row, text(row, "scheme"), "scaledmm " + text(row, "kernel"), number(row, "apply_us")));
}

void read_comparison(const Json& row, Figures& figures) {
  if (row.contains("failed")) return;
  const std::string scheme = text(row, "scheme");
  figures.measurements.push_back(measurement(row, scheme, text(row, "peer"), number(row, "peer_us")));
  const Measurement& at = figures.measurements.back();
  const bool has_ours = std::ranges::any_of(figures.measurements, [&](const Measurement& other) {
    return other.scheme == scheme && other.m == at.m && other.n == at.n && other.k == at.k &&
           other.who.starts_with("scaledmm ");
  });
  figures.speed_ups.push_back({scheme, text(row, "kernel"), text(row, "peer"), at.m, at.n, at.k, number(row, "ratio")});
  if (!has_ours) {
    figures.measurements.push_back(measurement(row, scheme, "scaledmm " + text(row, "kernel"), number(row, "ours_us")));
  }
}

Figures read_figures(const Json& document) {
  Figures figures;
  for (const auto& [key, read] : {std::pair{"rows", &read_row}, std::pair{"comparisons", &read_comparison}}) {
    const auto rows = document.find(key);
    if (rows == document.end()) continue;
    if (!rows->is_array()) throw UsageError(fmt::format("{} of the document is not a list", key));
    for (const Json& row : *rows) read(row, figures);
  }
  if (figures.measurements.empty()) throw UsageError("the document has no rows to draw");
  return figures;
}

double tops(const Measurement& at, double us) {
  return 2e-6 * static_cast<double>(at.m) * static_cast<double>(at.n) * static_cast<double>(at.k) / us;
}

using Weight = std::tuple<std::string, std::int64_t, std::int64_t>;  // scheme, N, K

// A line for each contender, `value` over M.
std::vector<PlotSeries> over_m(const std::vector<const Measurement*>& some,
                               double (*value)(const Measurement&, double us)) {
  std::vector<PlotSeries> series;
  std::map<double, double> floor;
  for (const Measurement* at : some) {
    auto found = std::ranges::find(series, at->who, &PlotSeries::name);
    if (found == series.end()) found = series.insert(series.end(), PlotSeries{at->who, {}});
    found->points.emplace_back(static_cast<double>(at->m), value(*at, at->us));
    if (at->floor_us) floor[static_cast<double>(at->m)] = value(*at, *at->floor_us);
  }
  if (!floor.empty()) series.push_back({"floor", {floor.begin(), floor.end()}, true, true});
  for (PlotSeries& one : series) std::ranges::sort(one.points);
  return series;
}

std::string draw_over_m(const Figures& figures) {
  std::vector<Weight> order;
  std::map<Weight, std::vector<const Measurement*>> groups;
  for (const Measurement& at : figures.measurements) {
    const Weight weight{at.scheme, at.n, at.k};
    if (!groups.contains(weight)) order.push_back(weight);
    groups[weight].push_back(&at);
  }
  std::string html;
  for (const Weight& weight : order) {
    const std::string name =
        fmt::format("{}, N = {}, K = {}", std::get<0>(weight), std::get<1>(weight), std::get<2>(weight));
    const std::vector<const Measurement*>& some = groups[weight];
    html += line_plot(name + ": time of a call", "M (rows of activations)", "microseconds",
                      over_m(some, [](const Measurement&, double us) { return us; }));
    html += line_plot(name + ": operations", "M (rows of activations)", "TOP/s",
                      over_m(some, [](const Measurement& at, double us) { return tops(at, us); }));
  }
  return html;
}

// Operations a second over operations a byte of weights, activations and outputs.
double intensity(const Measurement& at) {
  const double m = static_cast<double>(at.m), n = static_cast<double>(at.n), k = static_cast<double>(at.k);
  return 2 * m * n * k / (n * k + 2 * m * k + 2 * m * n);
}

std::string draw_roofline(const Figures& figures) {
  std::map<std::string, PlotSeries> ours;
  std::map<std::string, std::map<double, double>> roofs;
  for (const Measurement& at : figures.measurements) {
    if (!at.floor_us) continue;
    const std::string name = at.scheme + ", " + at.who;
    PlotSeries& series = ours[name];
    series.name = name;
    series.is_line = false;
    series.points.emplace_back(intensity(at), tops(at, at.us));
    double& roof = roofs[at.scheme][intensity(at)];
    roof = std::max(roof, tops(at, *at.floor_us));
  }
  std::vector<PlotSeries> series;
  for (auto& [name, one] : ours) series.push_back(std::move(one));
  for (const auto& [scheme, roof] : roofs) {
    series.push_back({scheme + ", roof", {roof.begin(), roof.end()}, true, true});
  }
  return line_plot("Roofline", "operations a byte", "TOP/s", series);
}

// A map for each of our kernels; a row for each peer and weight.
std::string draw_speed_ups(const Figures& figures) {
  std::string html;
  std::set<std::string> kernels;
  for (const SpeedUp& at : figures.speed_ups) kernels.insert(at.kernel);
  for (const std::string& kernel : kernels) {
    HeatMap map;
    std::set<std::int64_t> ms;
    for (const SpeedUp& at : figures.speed_ups) {
      if (at.kernel == kernel) ms.insert(at.m);
    }
    for (const std::int64_t m : ms) map.columns.push_back(std::to_string(m));
    for (const SpeedUp& at : figures.speed_ups) {
      if (at.kernel != kernel) continue;
      const std::string row = fmt::format("{}, {} x {}", at.peer, at.n, at.k);
      auto found = std::ranges::find(map.rows, row);
      if (found == map.rows.end()) {
        found = map.rows.insert(map.rows.end(), row);
        map.values.emplace_back(map.columns.size());
      }
      const auto column = std::distance(ms.begin(), ms.find(at.m));
      map.values[static_cast<std::size_t>(found - map.rows.begin())][static_cast<std::size_t>(column)] = at.ratio;
    }
    html += heat_map(kernel + ": times faster than", "peer, N x K; M:", map);
  }
  return html;
}

// What the document says about the run, but for the rows.
std::string describe(const Json& document) {
  std::string html = "<table>\n";
  for (const auto& [key, value] : document.items()) {
    if (key == "rows" || key == "comparisons") continue;
    html += fmt::format("<tr><th>{}</th><td>{}</td></tr>\n", escape_html(key),
                        escape_html(value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return html + "</table>\n";
}

std::string comparison_table(const Json& document) {
  const auto rows = document.find("comparisons");
  if (rows == document.end() || rows->empty()) return {};
  std::string html =
      "<h2>Comparisons</h2>\n<table>\n<tr><th>scheme</th><th>M, N, K</th><th>kernel</th><th>peer</th><th>ours us</th>"
      "<th>peer us</th><th>ratio (p10..p90)</th><th>wins</th><th>pairs</th><th>our error</th><th>peer's error</th>"
      "<th>AMX state: ratio, wins, pairs</th></tr>\n";
  for (const Json& row : *rows) {
    if (row.contains("failed")) {
      html += fmt::format("<tr><td>{}</td><td>{:.0f}, {:.0f}</td><td></td><td>{}</td><td colspan=\"8\">{}</td></tr>\n",
                          escape_html(text(row, "scheme")), number(row, "n"), number(row, "k"),
                          escape_html(text(row, "peer")), escape_html(text(row, "failed")));
      continue;
    }
    std::string by_state;
    const Json states = row.value("states", Json::object());
    for (const auto& [state, some] : states.items()) {
      by_state += fmt::format("{}: {:.2f}, {:.0f} %, {:.0f}; ", escape_html(state), number(some, "ratio"),
                              100 * number(some, "wins", Zero::kTaken), number(some, "pairs"));
    }
    html += fmt::format(
        "<tr><td>{}</td><td>{:.0f}, {:.0f}, {:.0f}</td><td>{}</td><td>{}</td><td>{:.1f}</td><td>{:.1f}</td>"
        "<td>{:.2f} ({:.2f}..{:.2f})</td><td>{:.0f} "
        "%</td><td>{:.0f}</td><td>{:.2e}</td><td>{:.2e}</td><td>{}</td></tr>\n",
        escape_html(text(row, "scheme")), number(row, "m"), number(row, "n"), number(row, "k"),
        escape_html(text(row, "kernel")), escape_html(text(row, "peer")), number(row, "ours_us"),
        number(row, "peer_us"), number(row, "ratio"), number(row, "ratio_p10"), number(row, "ratio_p90"),
        100 * number(row, "wins", Zero::kTaken), number(row, "pairs"), number(row, "ours_error", Zero::kTaken),
        number(row, "peer_error", Zero::kTaken), by_state);
  }
  return html + "</table>\n";
}

}  // namespace

std::string html_report(const Json& document, const std::string& title) {
  const Figures figures = read_figures(document);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n<style>\n"
      "body {{ font-family: sans-serif; margin: 2em; }}\ntable {{ border-collapse: collapse; margin: 1em 0; }}\n"
      "th, td {{ border: 1px solid #ccc; padding: 2px 8px; text-align: left; font-size: 13px; }}\n"
      "svg {{ display: block; margin: 1em 0; max-width: 100%; "
      "}}\n</style></head>\n<body>\n<h1>{0}</h1>\n{1}{2}{3}{4}{5}"
      "</body></html>\n",
      escape_html(title), describe(document), draw_speed_ups(figures), draw_roofline(figures), draw_over_m(figures),
      comparison_table(document));
}

}  // namespace scaledmm::cli
