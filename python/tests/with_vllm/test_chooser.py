"""The plugin in vLLM's lists, against a stub of vLLM's chooser."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import stub_vllm
import torch
from stub_vllm import FP8ScaledMMLinearLayerConfig, Int8ScaledMMLinearLayerConfig, PlatformEnum, StubVllm

import scaledmm.vllm

LISTS = {
    "INT8": "ScaledmmInt8LinearKernel",
    "FP8": "ScaledmmFP8LinearKernel",
    "FP8_BLOCK": "ScaledmmFP8BlockLinearKernel",
    "WFP8A16": "ScaledmmWFP8A16LinearKernel",
}


def fp8(weight: stub_vllm.QuantKey, activation: stub_vllm.QuantKey) -> FP8ScaledMMLinearLayerConfig:
    return FP8ScaledMMLinearLayerConfig(weight, activation, (96, 64), torch.bfloat16, torch.bfloat16)


CONFIGS = {
    "INT8": Int8ScaledMMLinearLayerConfig(False, True, True),
    "FP8": fp8(stub_vllm.STATIC_CHANNEL, stub_vllm.DYNAMIC_TOKEN),
    "FP8_BLOCK": fp8(stub_vllm.STATIC_BLOCK, stub_vllm.DYNAMIC_GROUP),
    "WFP8A16": fp8(stub_vllm.STATIC_TENSOR, stub_vllm.DYNAMIC_TENSOR),
}


@pytest.fixture
def cpu() -> Iterator[StubVllm]:
    with StubVllm(PlatformEnum.CPU).imported() as vllm:
        yield vllm


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    # vLLM's logger does not propagate once vLLM has set logging up.
    logging.getLogger("vllm").propagate = True
    caplog.set_level(logging.INFO, logger="vllm.scaledmm")
    return caplog


@pytest.mark.parametrize("name", LISTS)
def test_our_kernel_comes_first_and_is_chosen(cpu: StubVllm, name: str) -> None:
    theirs = list(cpu.list_of(name))
    scaledmm.vllm.register()
    assert [kernel.__name__ for kernel in cpu.list_of(name)] == [LISTS[name]] + [kernel.__name__ for kernel in theirs]
    assert cpu.choose(name, CONFIGS[name]).__name__ == LISTS[name]


def test_one_line_says_what_was_replaced_and_why(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    scaledmm.vllm.register()
    assert [record.levelname for record in log.records] == ["INFO"]
    line = log.records[0].getMessage()
    assert "\n" not in line
    assert "INT8: ScaledmmInt8LinearKernel before BestINT8 (requires AMX), INT8" in line
    assert "FP8 block: ScaledmmFP8BlockLinearKernel before BestFP8_BLOCK (requires AMX), FP8_BLOCK" in line
    assert "FP8 weight-only: ScaledmmWFP8A16LinearKernel before nothing" in line
    assert "scaled_fp8_quant" in line


def test_registering_twice_changes_nothing(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    scaledmm.vllm.register()
    lists = {name: list(cpu.list_of(name)) for name in LISTS}
    quantizer = cpu.custom_ops.scaled_fp8_quant
    process = cpu.fp8_method.process_weights_after_loading
    log.clear()
    scaledmm.vllm.register()
    assert {name: list(cpu.list_of(name)) for name in LISTS} == lists
    assert cpu.custom_ops.scaled_fp8_quant is quantizer
    assert cpu.fp8_method.process_weights_after_loading is process
    assert not log.records


def test_the_environment_switches_it_off(cpu: StubVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDMM_VLLM", "0")
    scaledmm.vllm.register()
    assert all(kernel.__name__ not in LISTS.values() for name in LISTS for kernel in cpu.list_of(name))


def test_a_disabled_kernel_leaves_the_layer_to_vllm(cpu: StubVllm) -> None:
    scaledmm.vllm.register()
    cpu.disabled = {"ScaledmmInt8LinearKernel"}
    assert cpu.choose("INT8", CONFIGS["INT8"]).__name__ == "INT8"


def test_a_named_backend_leaves_the_layer_to_vllm(cpu: StubVllm) -> None:
    scaledmm.vllm.register()
    cpu.backend = {cpu.list_of("FP8")[-1]}
    assert cpu.choose("FP8", CONFIGS["FP8"]).__name__ == "FP8"


def test_scales_on_scales_are_refused_with_a_reason(cpu: StubVllm) -> None:
    scaledmm.vllm.register()
    second = stub_vllm.ScaleDesc(torch.float32, True, stub_vllm.GroupShape(-1, -1))
    key = stub_vllm.QuantKey(torch.float8_e4m3fn, stub_vllm.STATIC_CHANNEL.scale, second)
    config = fp8(key, stub_vllm.DYNAMIC_TOKEN)
    ok, reason = cpu.list_of("FP8")[0].can_implement(config)
    assert not ok and "second level" in str(reason)
    assert cpu.choose("FP8", config).__name__ == "FP8"


@pytest.mark.parametrize("platform", [PlatformEnum.CUDA, PlatformEnum.ROCM, PlatformEnum.XPU])
def test_on_gpus_nothing_changes_unless_it_is_asked_for(
    platform: PlatformEnum, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALEDMM_VLLM", raising=False)
    with StubVllm(platform).imported() as vllm:
        scaledmm.vllm.register()
        assert all(not kernel.__name__.startswith("Scaledmm") for name in LISTS for kernel in vllm.list_of(name))


@pytest.mark.parametrize("platform", [PlatformEnum.ROCM, PlatformEnum.XPU])
def test_elsewhere_it_is_listed_and_says_what_it_lacks(platform: PlatformEnum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDMM_VLLM", "1")
    with StubVllm(platform).imported() as vllm:
        quantizer = vllm.custom_ops.scaled_fp8_quant
        scaledmm.vllm.register()
        for name in LISTS:
            ours = vllm.list_of(name)[0]
            assert ours.__name__ == LISTS[name]
            ok, reason = ours.is_supported(90)
            assert not ok and "has no" in str(reason)
            if name != "WFP8A16":
                assert vllm.choose(name, CONFIGS[name]).__name__ == name
        assert vllm.custom_ops.scaled_fp8_quant is quantizer
        assert all(not vllm.linear._POSSIBLE_INT8_KERNELS[other][0].__name__.startswith("Scaledmm")
                   for other in PlatformEnum if other is not platform)  # fmt: skip


def test_on_cuda_the_same_classes_are_chosen_where_the_card_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards are described, so that this runs without one: Hopper has INT8 and FP8 kernels, and none for blocks yet."""
    monkeypatch.setenv("SCALEDMM_VLLM", "1")
    monkeypatch.setattr("scaledmm.vllm.kernels.device_of", lambda platform: "sm90")
    with StubVllm(PlatformEnum.CUDA).imported() as vllm:
        scaledmm.vllm.register()
        for name in LISTS:
            assert vllm.list_of(name)[0].__name__ == LISTS[name]
        chosen = {name: vllm.choose(name, CONFIGS[name]).__name__ for name in ("INT8", "FP8", "FP8_BLOCK")}
        assert chosen["INT8"] == LISTS["INT8"] and chosen["FP8"] == LISTS["FP8"]
        ok, reason = vllm.list_of("FP8_BLOCK")[0].can_implement(CONFIGS["FP8_BLOCK"])
        assert (chosen["FP8_BLOCK"] == LISTS["FP8_BLOCK"]) == ok and (ok or "kernel" in str(reason))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_on_cuda_without_a_card_it_stands_aside_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALEDMM_VLLM", "1")
    with StubVllm(PlatformEnum.CUDA).imported() as vllm:
        scaledmm.vllm.register()
        ok, reason = vllm.list_of("INT8")[0].can_implement(CONFIGS["INT8"])
        assert not ok and "cannot ask scaledmm about the layer" in str(reason)
        assert vllm.choose("INT8", CONFIGS["INT8"]).__name__ == "INT8"


def test_a_list_that_is_gone_is_named_and_the_others_are_used(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    del cpu.linear._POSSIBLE_FP8_BLOCK_KERNELS
    scaledmm.vllm.register()
    warning = next(record for record in log.records if record.levelname == "WARNING").getMessage()
    assert "FP8 block layers" in warning and "_POSSIBLE_FP8_BLOCK_KERNELS" in warning
    assert cpu.choose("INT8", CONFIGS["INT8"]).__name__ == "ScaledmmInt8LinearKernel"


def test_a_list_of_another_kind_is_left_alone(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    cpu.linear._POSSIBLE_INT8_KERNELS = {PlatformEnum.CPU: ()}
    scaledmm.vllm.register()
    assert any("INT8 layers" in record.getMessage() for record in log.records if record.levelname == "WARNING")


def test_a_new_duty_of_kernels_makes_it_stand_aside(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    class Stricter(stub_vllm.Int8ScaledMMLinearKernel, ABC):
        @abstractmethod
        def prepare(self) -> None: ...

    cpu.linear.Int8ScaledMMLinearKernel = Stricter
    scaledmm.vllm.register()
    assert any("prepare" in record.getMessage() for record in log.records if record.levelname == "WARNING")
    assert cpu.choose("INT8", CONFIGS["INT8"]).__name__ == "INT8"


def test_another_constructor_makes_it_stand_aside(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    class Other(stub_vllm.Fp8BlockScaledMMLinearKernel, ABC):
        def __init__(self, config: object, names: object) -> None:
            super().__init__(config)

    cpu.linear.Fp8BlockScaledMMLinearKernel = Other
    scaledmm.vllm.register()
    assert any("2 arguments" in record.getMessage() for record in log.records if record.levelname == "WARNING")
    assert cpu.choose("FP8_BLOCK", CONFIGS["FP8_BLOCK"]).__name__ == "FP8_BLOCK"


def test_a_renamed_field_makes_it_stand_aside(cpu: StubVllm, log: pytest.LogCaptureFixture) -> None:
    @dataclass
    class Renamed:
        is_static_input_scheme: bool
        per_channel: bool
        input_symmetric: bool

    cpu.linear.Int8ScaledMMLinearLayerConfig = Renamed
    scaledmm.vllm.register()
    assert any("is_channelwise" in record.getMessage() for record in log.records if record.levelname == "WARNING")
    assert cpu.choose("INT8", CONFIGS["INT8"]).__name__ == "INT8"


def test_without_vllm_it_warns(log: pytest.LogCaptureFixture) -> None:
    vllm = StubVllm(PlatformEnum.CPU)
    with vllm.imported():
        import sys

        sys.modules["vllm.model_executor.kernels.linear"] = None  # type: ignore[assignment]
        scaledmm.vllm.register()
    assert [record.levelname for record in log.records] == ["WARNING"]
