"""Numbers of tensors that follow from a seed. C++ makes the same ones (common/model/testing/family_fixture.cc)."""

import numpy


def mix64(x):
    with numpy.errstate(over="ignore"):
        x = x + numpy.uint64(0x9e3779b97f4a7c15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94d049bb133111eb)
        return x ^ (x >> numpy.uint64(31))


def values(seed, index, shape, center, step, bits):
    """A tensor of this shape, number `index` of its model: center + step * an odd number below 2^bits in magnitude."""
    count = int(numpy.prod(shape))
    x = mix64(numpy.uint64((seed << 40) + (index << 24)) + numpy.arange(count, dtype=numpy.uint64))
    levels = 2 * (x >> numpy.uint64(64 - bits)).astype(numpy.int64) + 1 - (1 << bits)
    return (center + step * levels).astype(numpy.float32).reshape(shape)
