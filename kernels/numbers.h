// Numbers and their bits, and the exponential function of numbers that are not above 0, in a form that compilers vectorise.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

template <class To, class From>
inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a number and its bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// ln 2 in two parts, of which the first times n is exact; the Taylor series of `degree` is right to less than a roundoff; e to
// `least` is below the smallest normal number.
template <class Real>
struct Format;
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  static constexpr int mantissa = 23, degree = 7;
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f, least = -88;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  static constexpr int mantissa = 52, degree = 13;
  static constexpr double ln2_high = 0x1.62e42fefa38p-1, ln2_low = 0x1.ef35793c7673p-45, least = -709;
};
constexpr double TAYLOR[] = {1.,        1.,         1. / 2,      1. / 6,       1. / 24,       1. / 120,       1. / 720,
                             1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800};

// e^x = 2^n e^(x - n ln 2) for x <= 0, without a branch. 0 where that is no normal number any more: the bits of such a 2^n are those
// of 0. NaN for NaN.
template <class Real>
inline Real exponential(Real x) {
  using F = Format<Real>;
  using Bits = typename F::Bits;
  constexpr Real rounder = Real(Bits(3) << (F::mantissa - 1));  // adding it leaves no digit behind the point
  x = x < F::least ? F::least : x;
  const Real shifted = x * Real(1.4426950408889634) + rounder;
  const Real whole = shifted - rounder;
  const Real rest = (x - whole * F::ln2_high) - whole * F::ln2_low;
  Real series = Real(TAYLOR[F::degree]);
  for (int power = F::degree - 1; power >= 0; --power) series = series * rest + Real(TAYLOR[power]);
  const Bits exponent = same_bits<Bits>(shifted) << F::mantissa;  // the last bits of `shifted` are n
  return series * same_bits<Real>(exponent + same_bits<Bits>(Real(1)));
}

}  // namespace
