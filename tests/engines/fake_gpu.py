# SPDX-License-Identifier: Apache-2.0
"""A driver of CUDA that needs no GPU (tests/support/fake_cuda.h), and arrays on it."""
import ctypes

import numpy as np


class Driver:
    def __init__(self, path):
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cuda_bytes.restype = ctypes.c_void_p
        self.library.fake_cuda_bytes.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        self.library.fake_cuda_calls.restype = ctypes.c_uint64
        self.context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)

    def call(self, name, *arguments):
        assert getattr(self.library, name)(*arguments) == 0, name

    def array(self, shape, seed):
        return DeviceArray(self, shape, seed)

    def tensor(self, shape, seed):
        return DeviceTensor(self, shape, seed)

    def event(self):
        """One that has been recorded, in the default stream."""
        event = ctypes.c_void_p()
        self.call("cuCtxPushCurrent_v2", self.context)
        self.call("cuEventCreate", ctypes.byref(event), 0)
        self.call("cuEventRecord", event, None)
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        return event.value

    def calls(self, name):
        """Of a function of the driver's, so far."""
        return self.library.fake_cuda_calls(name.encode())

    def fail(self, name, result):
        self.library.fake_cuda_fail(name.encode(), result, 0, 0)


class DeviceArray:
    """Bytes on the GPU. host: the same bytes, where the host can see them."""

    def __init__(self, driver, shape, seed):
        nbytes, address = int(np.prod(shape)), ctypes.c_uint64()
        driver.call("cuCtxPushCurrent_v2", driver.context)
        driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        host = driver.library.fake_cuda_bytes(address, nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(host)
        self.host = np.frombuffer(memory, dtype=np.uint8).reshape(shape)
        self.host[:] = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": "|u1",
            "data": (address.value, False),
            "strides": None,
            "version": 3,
        }


class DeviceTensor(DeviceArray):
    """As much of a torch tensor as is looked at."""

    @property
    def shape(self):
        return self.host.shape

    @property
    def device(self):
        return type("device", (), {"type": "cuda", "index": 0})

    def data_ptr(self):
        return self.__cuda_array_interface__["data"][0]

    def stride(self, axis):
        return self.host.strides[axis]

    def element_size(self):
        return 1
