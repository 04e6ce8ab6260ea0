#!/usr/bin/env python3
"""Figures of GPU benchmarks as one HTML page: a table of every row, and bars of the time over the floor.

    plot.py PAGE.html FILE.json...

FILE.json: of torch_peers.py or `gemm_bench table`. Each file is one run: figures of different files are not compared.
"""

import html
import json
import pathlib
import sys

COLOURS = ["#4878a8", "#7fa8cf", "#b9cfe4", "#c0504d", "#e39a97", "#8b2f2c", "#8a8a8a", "#b8b8b8", "#5d8a57", "#a5c39f"]
WIDTH, LABEL, BAR, LIMIT = 900, 330, 13, 4.0
STYLE = """body { font: 14px sans-serif; max-width: 1200px; margin: 2em auto }
table { border-collapse: collapse } td, th { padding: 2px 8px; text-align: right; border-bottom: 1px solid #ddd }
th { vertical-align: bottom; font-weight: normal } td.ours { font-weight: bold } svg text { font: 11px sans-serif }"""


def is_ours(name: str) -> bool:
    return "sm90" in name


def shapes(rows: list[dict]) -> list[tuple]:
    return list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows))


def floor_of(row: dict) -> float:
    return row["floor_us"] if "floor_us" in row else row["us"] * row["share_of_floor"]


def table(rows: list[dict]) -> str:
    names = list(dict.fromkeys(row["contender"] for row in rows))
    lines = ["<table><tr><th>M,N,K</th><th>floor</th>" + "".join(f"<th>{html.escape(n)}</th>" for n in names) + "</tr>"]
    for shape in shapes(rows):
        here = {row["contender"]: row for row in rows if (row["m"], row["n"], row["k"]) == shape}
        cells = [f"<td>{','.join(map(str, shape))}</td><td>{floor_of(next(iter(here.values()))):.1f}</td>"]
        for name in names:
            text = f"{here[name]['us']:.4g}" if name in here else "-"
            cells.append(f"<td{' class=ours' if is_ours(name) else ''}>{text}</td>")
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return "\n".join(lines) + "</table>"


def bars(rows: list[dict]) -> str:
    """A bar for each contender: its time over the floor, cut at LIMIT."""
    names = list(dict.fromkeys(row["contender"] for row in rows))
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    y, parts = 10, []
    for shape in shapes(rows):
        parts.append(f'<text x="0" y="{y + 10}" font-weight="bold">{",".join(map(str, shape))}</text>')
        y += BAR + 3
        for row in (r for r in rows if (r["m"], r["n"], r["k"]) == shape):
            ratio = row["us"] / floor_of(row)
            width = (WIDTH - LABEL - 60) * min(ratio, LIMIT) / LIMIT
            parts.append(f'<text x="{LABEL - 6}" y="{y + 10}" text-anchor="end">{html.escape(row["contender"])}</text>'
                         f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR - 2}" '
                         f'fill="{colour[row["contender"]]}"/>'
                         f'<text x="{LABEL + width + 4:.1f}" y="{y + 10}">{ratio:.2f}</text>')
            y += BAR
        y += 8
    at_floor = LABEL + (WIDTH - LABEL - 60) / LIMIT
    parts.append(f'<line x1="{at_floor:.1f}" y1="0" x2="{at_floor:.1f}" y2="{y}" stroke="#444" stroke-dasharray="3"/>')
    return f'<svg width="{WIDTH}" height="{y}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def section(path: str) -> str:
    data = json.loads(pathlib.Path(path).read_text())
    facts = ", ".join(f"{key} {value}" for key, value in data.items() if not isinstance(value, list))
    parts = [f"<h2>{html.escape(pathlib.Path(path).name)}</h2><p>{html.escape(facts)}. Microseconds, medians.</p>"]
    for kind in dict.fromkeys(row["type"] for row in data["rows"]):
        rows = [row for row in data["rows"] if row["type"] == kind]
        parts += [f"<h3>{kind}</h3>", table(rows), "<p>Time over the floor; the dashed line is 1.</p>", bars(rows)]
    return "\n".join(parts)


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    page = (f"<!doctype html><meta charset=utf-8><title>GPU benchmarks</title><style>{STYLE}</style>\n"
            "<h1>GEMMs on a GPU beside their peers</h1>\n" + "\n".join(section(path) for path in sys.argv[2:]) + "\n")
    pathlib.Path(sys.argv[1]).write_text(page)


if __name__ == "__main__":
    main()
