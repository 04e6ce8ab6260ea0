#!/usr/bin/env python3
"""Packed files and peers of `scaledmm`, driven from outside: python3 cli_bench_test.py PATH_TO_SCALEDMM [ARGUMENTS].

The peer of these tests is this file, called with --peer KIND: it speaks the protocol of bench/baselines/README.md in
plain Python, and is right, wrong or broken as it is told. ARGUMENTS are unittest's.
"""

import array
import json
import os
import sys
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

import cli_case
from cli_case import Case, data8_checkpoint, dataf_block_checkpoint, read_safetensors

LAYER = "model.layers.0.mlp.up_proj"


def read_array(kind, path):
    values = array.array(kind)
    values.frombytes(Path(path).read_bytes())
    return values


class ToyPeer:
    """INT8 layers with scales of rows, multiplied in Python."""

    def __init__(self, kind):
        self.kind = kind

    def hello(self, threads):
        if self.kind == "absent":
            return {"error": "no such library here"}
        ways = [{"name": "toy product", "what": "apply", "schemes": ["int8"]}]
        if self.kind == "gemm":
            ways[0]["what"] = "gemm"
        return {"library": f"toy on {threads}", "ways": ways}

    def layer(self, way, scheme, n, k, codes, scales, min_bytes):
        if self.kind == "refusing":
            return {"error": "N is a number that I do not like"}
        self.n, self.k = n, k
        self.codes, self.scales = read_array("b", codes), read_array("f", scales)
        return {}

    def input(self, m, x):
        self.m, self.x = m, read_array("f", x)
        return {}

    def run(self, calls):
        if self.kind == "dying":
            print("I had enough", file=sys.stderr)
            os._exit(3)
        if self.kind == "talking":
            return {"us": "soon"}
        begin = time.perf_counter()
        self.y = array.array("f")
        for row in range(self.m):
            x = self.x[row * self.k : (row + 1) * self.k]
            for column in range(self.n):
                w = self.codes[column * self.k : (column + 1) * self.k]
                self.y.append(sum(map(float.__mul__, x, map(float, w))) * self.scales[column])
        if self.kind == "wrong":
            self.y = array.array("f", (2 * value for value in self.y))
        return {"us": [1e6 * (time.perf_counter() - begin)] * calls}

    def output(self, y):
        Path(y).write_bytes(self.y.tobytes())
        return {}

    def serve(self):
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(getattr(self, request.pop("op"))(**request)), flush=True)


class Peers(Case):
    FIELDS = ["kernel", "peer", "library", "scheme", "m", "n", "k", "threads", "cold", "what", "pairs", "ours_us",
              "peer_us", "ratio", "ratio_p10", "ratio_p90", "wins", "ours_error", "peer_error", "states"]

    def bench(self, *kinds, shapes=("1,32,64", "3,32,64")):
        arguments = ["--scheme", "int8", "--threads", "1", "--seconds", "0", "--output", self.folder / "b.json"]
        for shape in shapes:
            arguments += ["--shape", shape]
        for kind in kinds:
            arguments += ["--peer", f"'{sys.executable}' '{__file__}' --peer {kind}"]
        code, out, err = cli_case.run("bench", *arguments, "--html", self.folder / "b.html", "--json")
        self.assertEqual(code, 0, err)
        rows = [json.loads(line) for line in out.splitlines()]
        return [row for row in rows if "peer" in row], json.loads((self.folder / "b.json").read_text()), err

    def test_pairs_are_compared_and_both_sides_checked(self):
        rows, document, _ = self.bench("right")
        self.assertEqual([row["m"] for row in rows], [1, 3])
        for row in rows:
            self.assertEqual(list(row), self.FIELDS)
            self.assertEqual((row["peer"], row["library"], row["what"]), ("toy product", "toy on 1", "apply"))
            self.assertGreaterEqual(row["pairs"], 11)
            self.assertTrue(row["ratio_p10"] <= row["ratio"] <= row["ratio_p90"])
            self.assertTrue(0 <= row["wins"] <= 1)
            self.assertLess(row["peer_error"], 1e-6)
            self.assertTrue(1e-4 < row["ours_error"] < 0.03)  # of quantized activations
        self.assertEqual(document["comparisons"], rows)
        self.assertEqual(len(document["rows"]), 2)
        (peer,) = document["peers"]
        self.assertEqual((peer["library"], peer["ways"]), ("toy on 1", ["toy product"]))

    def test_a_wrong_peer_shows_in_its_error(self):
        rows, _, _ = self.bench("wrong", shapes=["2,32,64"])
        self.assertAlmostEqual(rows[0]["peer_error"], 1, places=3)

    def test_products_alone_meet_our_product_alone(self):
        rows, _, _ = self.bench("gemm", shapes=["2,32,64"])
        self.assertEqual(rows[0]["what"], "gemm")

    def test_absent_refusing_and_dying_peers_do_not_stop_the_others(self):
        rows, document, err = self.bench("absent", "refusing", "dying", "talking", "right", shapes=["2,32,64"])
        self.assertIn("no such library here", err)
        absent = [peer.get("absent", "") for peer in document["peers"]]
        self.assertEqual(absent, ["no such library here", "", "", "", ""])
        self.assertEqual([row.get("failed", "") for row in rows],
                         ["N is a number that I do not like", "has ended: I had enough",
                          "its answer to run has no list us", ""])

    def test_without_a_figure_of_any_peer_the_exit_code_is_1(self):
        shape = ["--scheme", "int8", "--shape", "1,8,8", "--threads", "1"]
        code, out, err = cli_case.run("bench", *shape, "--peer", "/nowhere/nothing", "--json")
        self.assertEqual((code, out), (1, ""), err)  # before anything is timed
        self.assertIn("peer /nowhere/nothing: has ended", err)
        self.assertIn("no peer can run here", json.loads(err.splitlines()[-1])["error"])
        for kind, scheme, reason in (("refusing", "int8", "a number that I do not like"),
                                     ("right", "fp8_w8a16", "no peer knows the schemes")):
            peer = f"'{sys.executable}' '{__file__}' --peer {kind}"
            shape[1] = scheme
            code, out, err = cli_case.run("bench", *shape, "--peer", peer, "--output", self.folder / "b.json")
            self.assertEqual(code, 1, err)
            self.assertIn("nothing was compared", err)
            self.assertIn(reason, err)
            self.assertEqual(len(json.loads((self.folder / "b.json").read_text())["rows"]), 1)

    def test_peers_that_break_the_protocol_are_absent(self):
        for answer in ('{"library": "x", "ways": [7]}', '{"library": "x", "ways": [{"name": "n", "what": "apply"}]}',
                       '{"library": "x", "ways": [{"name": "n", "what": "apply", "schemes": [1]}]}', '"'):
            code, _, err = cli_case.run("bench", "--shape", "1,8,8", "--peer", f"read x; echo '{answer}'; sleep 0.1")
            self.assertEqual(code, 1, err)
            self.assertNotIn("json.exception", err)

    def test_the_page_has_plots_and_can_be_drawn_again(self):
        self.bench("right")
        page = (self.folder / "b.html").read_text()
        for words in ("times faster than", "toy product, 32 x 64", "Roofline", "microseconds", "TOP/s"):
            self.assertIn(words, page)
        self.assertNotIn("http", page.replace("http://www.w3.org/2000/svg", ""))  # nothing is fetched
        for plot in page.split("<svg")[1:]:
            xml.etree.ElementTree.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")
        again = self.folder / "again" / "b.html"
        again.parent.mkdir()
        self.succeeds("bench", "--report", self.folder / "b.json", "--html", again)
        self.assertEqual(again.read_text(), page)

    def test_a_row_without_a_win_is_drawn(self):
        _, document, _ = self.bench("right")
        document["comparisons"][0].update(wins=0.0, peer_error=0.0)
        (self.folder / "b.json").write_text(json.dumps(document))
        self.succeeds("bench", "--report", self.folder / "b.json", "--html", self.folder / "lost.html")
        self.assertIn("<td>0 %</td>", (self.folder / "lost.html").read_text())

    def test_rows_of_the_gpu_benchmark_are_drawn_too(self):
        row = {"type": "fp8", "m": 1, "n": 64, "k": 32, "us": 5.0, "share_of_floor": 0.5}
        rows = [row | {"contender": "cublaslt fp8"},
                row | {"contender": "ours <1>", "us": 4.0, "speed_against_cublaslt": 1.25}]
        (self.folder / "g.json").write_text(json.dumps({"device": "a GPU", "rows": rows}))
        self.succeeds("bench", "--report", self.folder / "g.json", "--html", self.folder / "g.html")
        page = (self.folder / "g.html").read_text()
        self.assertIn(">1.25<", page)
        self.assertIn("ours &lt;1&gt;", page)

    def test_documents_without_rows_are_refused(self):
        (self.folder / "x.json").write_text('{"rows": []}')
        self.fails(2, "bench", "--report", self.folder / "x.json", "--html", self.folder / "x.html", names=["no rows"])
        (self.folder / "x.json").write_text('{"rows": [{"m": 1}]}')
        self.fails(2, "bench", "--report", self.folder / "x.json", "--html", self.folder / "x.html", names=["apply_us"])
        row = {"scheme": "int8", "kernel": "k", "m": 1, "n": 4, "k": 4, "apply_us": 1.0}
        for key, value in (("apply_us", 0), ("apply_us", -1), ("apply_us", 1e308), ("m", 0), ("share_of_floor", 0)):
            (self.folder / "x.json").write_text(json.dumps({"rows": [row | {key: value}]}))
            self.fails(2, "bench", "--report", self.folder / "x.json", "--html", self.folder / "x.html",
                       names=[f"{key} ="])
        self.assertFalse((self.folder / "x.html").exists())
        self.fails(2, "bench", "--report", self.folder / "x.json", names=["--html"])
        self.fails(2, "bench", "--seconds", "nan", "--peer", "true", names=["nan is no time"])


class Pack(Case):
    def test_a_packed_layer_gives_the_same_bytes(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        packed = self.folder / "c.packed"
        out, _ = self.succeeds("pack", checkpoint, "--output", packed)
        self.assertIn("1 packed layer", out)
        self.assertIn("fits: 1 packed layer", self.succeeds("pack", checkpoint, "--check", packed, "--content")[0])
        x = ("F32", [3, 320], cli_case.f32([((i * 37) % 101 - 50) / 16 for i in range(960)]))
        self.assertEqual(self.multiply(checkpoint, LAYER, x), self.multiply(checkpoint, LAYER, x, "--packed", packed))
        self.succeeds("run", checkpoint, "--packed", packed)
        layers = self.as_json("pack", checkpoint, "--check", packed)["layers"]
        self.assertEqual([layer["name"] for layer in layers], [LAYER])
        self.assertTrue(all(name.startswith(LAYER + "/") for name in read_safetensors(packed)))

    def test_a_forced_kernel_that_cannot_run_names_the_layer(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        self.fails(3, "pack", checkpoint, "--output", self.folder / "p", "--kernel", "fp8_w8a16_avx2",
                   names=[LAYER, "fp8_w8a16_avx2", "reference"])
        self.assertFalse((self.folder / "p").exists())

    def test_pack_does_not_replace_what_it_reads(self):
        checkpoint = data8_checkpoint(self.folder / "own")
        (self.folder / "link").symlink_to(checkpoint / "model.safetensors")
        for target in (checkpoint / "model.safetensors", checkpoint / "config.json", self.folder / "link"):
            before = target.read_bytes()
            self.fails(2, "pack", checkpoint, "--output", target, names=[target.name, "is read"])
            self.assertEqual(target.read_bytes(), before)

    def test_a_report_does_not_replace_its_measurements(self):
        record = self.folder / "record.json"
        self.succeeds("bench", "--scheme", "int8", "--shape", "1,32,32", "--output", record)
        before = record.read_bytes()
        self.fails(2, "bench", "--report", record, "--html", record, names=["record.json", "is read"])
        self.assertEqual(record.read_bytes(), before)

    def test_the_values_of_a_packed_layer_are_not_read_again(self):
        checkpoint = dataf_block_checkpoint(self.folder / "c")
        weights = checkpoint / "model.safetensors"
        sound = weights.read_bytes()
        codes = read_safetensors(weights)["layer.weight"][2]
        self.succeeds("pack", checkpoint, "--output", self.folder / "p")
        x = ("F32", [2, 384], cli_case.f32([1.0] * 768))
        expected = self.multiply(checkpoint, "layer", x)
        before = weights.stat()
        weights.write_bytes(sound.replace(codes, b"\x7f" * len(codes)))  # no numbers
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertEqual(self.multiply(checkpoint, "layer", x, "--packed", self.folder / "p"), expected)
        files = ["--input", self.folder / "x.safetensors", "--output", self.folder / "z"]
        self.fails(1, "run", checkpoint, "--layer", "layer", *files, names=["layer.weight", "is not a number"])
        self.fails(1, "pack", checkpoint, "--output", self.folder / "q", names=["layer.weight", "is not a number"])
        self.assertFalse((self.folder / "q").exists())

    def test_a_start_is_timed_both_ways(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        self.succeeds("pack", checkpoint, "--output", self.folder / "p")
        start = self.as_json("pack", checkpoint, "--check", self.folder / "p", "--time")["start"]
        self.assertEqual(list(start), ["packing", "mapped"])
        for times in start.values():
            self.assertEqual(list(times), ["load_ms", "first_calls_ms", "later_calls_ms"])
            self.assertTrue(all(ms > 0 for ms in times.values()))

    def test_stale_and_broken_files_exit_with_1(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        packed = self.folder / "c.packed"
        self.succeeds("pack", checkpoint, "--output", packed)
        (checkpoint / "config.json").write_text((checkpoint / "config.json").read_text() + " ")
        self.fails(1, "pack", checkpoint, "--check", packed, names=["c.packed", "stale", "config.json"])
        self.fails(1, "run", checkpoint, "--packed", packed, names=["stale"])
        packed.write_bytes(packed.read_bytes()[:-64])
        self.fails(1, "pack", checkpoint, "--check", packed, names=["c.packed"])
        self.fails(4, "pack", checkpoint, "--check", self.folder / "nothing")

    def test_another_kernel_is_another_file(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        self.succeeds("pack", checkpoint, "--output", self.folder / "p")
        self.fails(1, "run", checkpoint, "--packed", self.folder / "p", "--kernel", "reference",
                   names=["stale", "reference"])

    def test_wrong_usage_exits_with_2(self):
        checkpoint = data8_checkpoint(self.folder / "c")
        self.fails(2, "pack", checkpoint)
        self.fails(2, "pack", checkpoint, "--output", "a", "--check", "b")
        self.fails(2, "pack", checkpoint, "--output", self.folder / "p", "--content")
        self.fails(2, "pack", checkpoint, "--output", self.folder / "p", "--fuse", "q_proj,k_proj", names=["q_proj"])
        for words in ("up_proj", "up_proj,up_proj"):
            self.fails(2, "pack", checkpoint, "--output", self.folder / "p", "--fuse", words, names=["different names"])
        self.assertFalse((self.folder / "p").exists())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        ToyPeer(sys.argv[2]).serve()
    else:
        cli_case.BINARY = sys.argv.pop(1)
        unittest.main()
