"""dlpack.py LIBRARY: tensors of PyTorch in evenkeel and back, without a copy, through ctypes.

Exit code 77 where PyTorch is not there, which CTest calls skipped.
"""
import ctypes
import sys

try:
    import torch
    from torch.utils.dlpack import from_dlpack
except ImportError:
    print("no PyTorch here")
    sys.exit(77)

ek = ctypes.CDLL(sys.argv[1])
python = ctypes.pythonapi
VERSIONED, USED = b"dltensor_versioned", b"used_dltensor_versioned"


class Tensor(ctypes.Structure):
    """struct ek_tensor."""
    _fields_ = [("data", ctypes.c_void_p), ("memory", ctypes.c_void_p),
                ("device", ctypes.c_void_p), ("type", ctypes.c_int), ("rank", ctypes.c_int),
                ("shape", ctypes.c_int64 * 8)]


def returns(kind, *functions):
    for function in functions:
        function.restype = kind


returns(ctypes.c_char_p, ek.ek_error_message)
returns(ctypes.c_void_p, ek.ek_group_device, ek.ek_device_stream, python.PyCapsule_GetPointer)
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
returns(ctypes.py_object, python.PyCapsule_New)
pointer = ctypes.c_void_p


def check(status):
    if status != 0:
        raise RuntimeError(ek.ek_error_message().decode())


def take(tensor, device):
    capsule = tensor.__dlpack__(max_version=(1, 0))
    made = Tensor()
    check(ek.ek_dlpack_import(ctypes.byref(made), pointer(device),
                              pointer(python.PyCapsule_GetPointer(capsule, VERSIONED)), None))
    python.PyCapsule_SetName(capsule, USED)
    return made


def give(made):
    out = pointer()
    check(ek.ek_dlpack_export(ctypes.byref(out), ctypes.byref(made), None))
    return from_dlpack(python.PyCapsule_New(out, VERSIONED, None))


def refused(tensor, device, text):
    try:
        take(tensor, device)
    except RuntimeError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"{tensor.dtype} with strides {tensor.stride()} was taken")


def main():
    group = pointer()
    check(ek.ek_group_open(ctypes.byref(group), b"cpu:1@16MiB", None))
    device = ek.ek_group_device(group, ctypes.c_size_t(0))
    stream = ek.ek_device_stream(pointer(device), 0)
    for dtype in torch.float32, torch.float64, torch.bfloat16, torch.float16:
        theirs = torch.arange(12).reshape(3, 4).to(dtype)
        made = take(theirs, device)
        assert made.data == theirs.data_ptr(), "a copy"
        check(ek.ek_op_scale(pointer(stream), ctypes.byref(made), ctypes.byref(made),
                             ctypes.c_double(2)))
        assert torch.equal(theirs.double(), 2 * torch.arange(12).reshape(3, 4).double())
        back = give(made)
        assert back.data_ptr() == theirs.data_ptr() and back.dtype == dtype
        assert back.shape == theirs.shape
        ek.ek_tensor_free(ctypes.byref(made))
        back += 1  # still there: PyTorch holds the other reference
        assert theirs[2, 3].item() == 23
        del back
    for dtype in torch.int32, torch.int64:
        made = take(torch.tensor([3, 5], dtype=dtype), device)  # PyTorch has dropped its own
        assert give(made).tolist() == [3, 5]
        ek.ek_tensor_free(ctypes.byref(made))
    refused(torch.ones(3, 4).t(), device, "stride of dimension 1 is 4; expected 1")
    refused(torch.ones(3, dtype=torch.complex64), device, "have no type here")
    refused(torch.ones(3, dtype=torch.uint8), device, "only in host memory")
    check(ek.ek_group_close(group))  # nothing is held any more
    print("tensors of PyTorch", torch.__version__, "went both ways without a copy")


main()
