"""Arrays in and out: without copies, of every dtype, and refused with a reason."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

import scaledmm

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "int8": np.int8,
    "int32": np.int32,
    "uint8": np.uint8,
    "bf16": ml_dtypes.bfloat16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_in_and_out_without_a_copy(name):
    source = np.arange(12, dtype=np.uint8).astype(DTYPES[name]).reshape(3, 4)
    array = scaledmm.array(source)
    assert (array.dtype, array.shape, array.strides) == (name, (3, 4), (4, 1))
    assert array.data_ptr == source.ctypes.data
    back = array.numpy()
    assert back.dtype == source.dtype
    assert back.ctypes.data == source.ctypes.data
    assert back.tobytes() == source.tobytes()


def test_strided_views_keep_their_strides():
    source = np.zeros((6, 10), np.float32)
    array = scaledmm.array(source[::2, 1::3])
    assert (array.shape, array.strides) == ((3, 3), (20, 3))
    assert array.data_ptr == source.ctypes.data + 4
    assert scaledmm.array(source[::-1]).strides == (-10, 1)


@pytest.mark.parametrize(
    ("carrier", "dtype"), [(np.uint8, "e4m3fn"), (np.int8, "e5m2"), (np.uint16, "bf16"), (np.uint8, "e8m0")]
)
def test_a_dtype_names_what_a_carrier_holds(carrier, dtype):
    source = np.arange(6, dtype=carrier)
    array = scaledmm.array(source, dtype)
    assert array.dtype == dtype
    assert array.data_ptr == source.ctypes.data
    assert array.numpy().tobytes() == source.tobytes()


def test_a_carrier_of_another_size_is_refused():
    with pytest.raises(ValueError, match="x is int32, not bf16"):
        scaledmm.array(np.zeros(3, np.int32), "bf16")
    with pytest.raises(ValueError, match="x is f32, not int32"):
        scaledmm.array(np.zeros(3, np.float32), "int32")


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_, np.complex64, np.uint16])
def test_dtypes_that_layers_never_have_are_named_and_refused(dtype):
    with pytest.raises(ValueError, match="which is no element type of quantized layers"):
        scaledmm.array(np.zeros(3, dtype))


def test_what_is_no_array_is_a_type_error():
    with pytest.raises(TypeError, match="x is a list, which has no __dlpack__"):
        scaledmm.array([1.0, 2.0])


def test_dtype_names_of_all_frameworks_are_understood():
    for name in ("bf16", "bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert scaledmm.layer_config("int8", 4, 4, input_dtype=name).input_dtype == "bf16"
    with pytest.raises(ValueError, match="float64 is no dtype of this library; known are f32, bf16"):
        scaledmm.layer_config("int8", 4, 4, input_dtype=np.float64)


def test_read_only_arrays_are_read_and_not_written():
    source = np.ones((2, 4), np.float32)
    source.setflags(write=False)
    array = scaledmm.array(source)
    assert array.read_only
    assert not array.numpy().flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        array.__dlpack__()
    codes, scale = scaledmm.quantize_weight(np.eye(4, dtype=np.float32), "int8")
    linear = scaledmm.Linear(scaledmm.layer_config("int8", 4, 4, input_dtype="f32"), codes, scale)
    linear(source)
    with pytest.raises(ValueError, match="out is read-only"):
        linear(np.ones((2, 4), np.float32), out=source)


def test_memory_lives_as_long_as_someone_looks_at_it():
    source = np.arange(1000, dtype=np.float32)
    view = scaledmm.array(source).numpy()
    del source
    assert view.sum() == 499500


def test_copies_on_request_are_packed_and_marked():
    source = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    copy = np.from_dlpack(scaledmm.array(source), copy=True)
    assert copy.ctypes.data != source.ctypes.data
    assert np.array_equal(copy, source)
    assert copy.strides == (8, 4)


class Producer:
    """An array of another framework: memory of numpy behind a DLPack capsule made by hand."""

    def __init__(self, source, *, major=1, device=1, strides=True, byte_offset=0, legacy=False):
        self.source, self.device, self.legacy = source, device, legacy
        self.deleted = 0
        self.requested = None
        self._deleter = _DELETER(self._delete)
        tensor = _Tensor(
            data=source.ctypes.data - byte_offset,
            device_type=device,
            device_id=0,
            ndim=source.ndim,
            code=2,
            bits=32,
            lanes=1,
            shape=(ctypes.c_int64 * source.ndim)(*source.shape),
            strides=(ctypes.c_int64 * source.ndim)(*(s // 4 for s in source.strides)) if strides else None,
            byte_offset=byte_offset,
        )
        if legacy:
            self.managed = _Managed(tensor=tensor, manager=None, deleter=self._deleter)
        else:
            self.managed = _Versioned(major=major, minor=9, manager=None, deleter=self._deleter, flags=0, tensor=tensor)

    def _delete(self, _):
        self.deleted += 1

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **arguments):
        if self.legacy and arguments:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        self.requested = arguments.get("max_version")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor" if self.legacy else b"dltensor_versioned", None)


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


@pytest.mark.parametrize("legacy", [False, True])
def test_capsules_of_both_kinds_are_taken_and_given_back_once(legacy):
    producer = Producer(np.arange(6, dtype=np.float32).reshape(2, 3), legacy=legacy, strides=False, byte_offset=8)
    array = scaledmm.array(producer)
    assert (array.data_ptr, array.strides) == (producer.source.ctypes.data, (3, 1))
    assert producer.requested == (None if legacy else (1, 3))
    again = scaledmm.array(array)
    del array
    assert producer.deleted == 0
    del again
    assert producer.deleted == 1


def test_another_major_version_is_given_back_unread():
    producer = Producer(np.zeros(3, np.float32), major=2)
    with pytest.raises(BufferError, match="DLPack version 2"):
        scaledmm.array(producer)
    assert producer.deleted == 1


def test_memory_of_other_devices_is_refused_with_its_name():
    with pytest.raises(ValueError, match="x is in the memory of cuda:0, must be in that of the processor"):
        scaledmm.array(Producer(np.zeros(3, np.float32), device=2))
    with pytest.raises(ValueError, match="DLPack device type 10"):
        scaledmm.array(Producer(np.zeros(3, np.float32), device=10))
