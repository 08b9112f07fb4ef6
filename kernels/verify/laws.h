// Rows of logits as laws, and draws from them: README.md's Eqs. 0, 8, 9, 12 and 13.
//
// A row is read once, in tiles that stay in the nearest cache; of a filtered row its blocks' largest logits are read before.
// No probability is stored but those of one tile. The compiler vectorises the loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "../numbers.h"

namespace {
namespace laws {

using Index = std::int64_t;
constexpr Index TILE = 2048;    // V_k of Eq. 8: one or two of them fill half of the nearest cache
constexpr Index CHUNK = 256;    // numbers between two looks ahead
constexpr Index LINE = 64;      // bytes that come from memory together
constexpr Index BLOCK = 32;     // logits of which a filter knows the largest
constexpr Index NUCLEUS = 256;  // the largest logits, in which a nucleus is looked for first
constexpr double BELOW_ONE = 1 - 0x1p-52;
constexpr double INFINITE = std::numeric_limits<double>::infinity();

struct BFloat16 {
  std::uint16_t bits;
};

// Half precision: the compiler's own where it has one, which the processor widens, else its bits.
#ifdef __FLT16_MANT_DIG__
using Float16 = _Float16;
#else
struct Float16 {
  std::uint16_t bits;
};
#endif

// A logit as the number that is computed with: fp64 stays, all others are fp32.
inline double number(double logit) { return logit; }
inline float number(float logit) { return logit; }
#ifdef __FLT16_MANT_DIG__
inline float number(Float16 logit) { return logit; }
#else
inline float number(Float16 logit) {
  const std::uint32_t sign = std::uint32_t(logit.bits & 0x8000) << 16, rest = std::uint32_t(logit.bits & 0x7fff) << 13;
  const bool is_finite = rest < 0xf800000;
  const float size = is_finite ? same_bits<float>(rest) * 0x1p112f : same_bits<float>(rest | 0x7f800000);
  return sign ? -size : size;
}
#endif
inline float number(BFloat16 logit) { return same_bits<float>(std::uint32_t(logit.bits) << 16); }

// The likeliest token, the first of equal ones; a NaN is above all, as for torch's argmax.
template <class Logit>
Index likeliest(const Logit* logits, Index size) {
  using Real = decltype(number(Logit{}));
  Real top = Real(-INFINITE);
  const Logit* chunk = logits;  // the first that holds `top`
  for (Index first = 0; first < size; first += CHUNK) {
    const Index last = std::min(first + CHUNK, size);
    Real largest = Real(-INFINITE), num_nan = 0;
#pragma omp simd reduction(max : largest) reduction(+ : num_nan)
    for (Index i = first; i < last; ++i) {
      const Real logit = number(logits[i]);
      largest = logit > largest ? logit : largest;
      num_nan += logit != logit ? Real(1) : Real(0);
    }
    if (num_nan > 0) {
      return std::find_if(logits + first, logits + last, [](Logit one) { return number(one) != number(one); }) - logits;
    }
    if (largest > top) {
      top = largest;
      chunk = logits + first;
    }
  }
  return std::find_if(chunk, logits + size, [=](Logit one) { return number(one) == top; }) - logits;
}

// x, or 0 above it: a log-sum-exp that was handed over may be rounded below its row's largest logit. NaN stays.
template <class Real>
inline Real at_most_0(Real x) {
  return x > 0 ? Real(0) : x;
}

// One model's rows, and how its logits become a law. Mirrored by `MODEL` of `fused_cpu.py`.
struct Model {
  const void* logits;  // null: a point mass
  Index entry_stride, row_stride;
  double temperature;
  Index top_k;  // V: all tokens
  double top_p;
};

// How many threads share a row's tiles: all where the batch is one row, and a row is long enough.
constexpr Index SHARED_TILES = 8;
thread_local Index row_threads = 1;
inline Index threads_for(Index tiles) { return tiles < SHARED_TILES ? 1 : row_threads; }

// One row of a model: the law of Eq. 0.
template <class Logit>
struct Row {
  using Real = decltype(number(Logit{}));

  struct Entry {
    Real logit;
    Index token;
    bool operator<(const Entry& other) const {  // the largest first, of equal ones the last
      return logit > other.logit || (logit == other.logit && token > other.token);
    }
  };

  const Logit* logits = nullptr;
  Index size = 0;
  Real scale = 1;                // 1 / temperature
  Real least = Real(-INFINITE);  // tokens stay if their logit is above it, or equal and they are no earlier than `first_tie`
  Index first_tie = 0;
  Real top = 0;                      // m of Eq. 9
  double sum = 1;                    // S of Eq. 9
  std::vector<Real> tops;            // m_k of Eq. 8
  std::vector<double> sums;          // S_k of Eq. 8

  Row() = default;
  Row(const Model& model, Index entry, Index position, Index size)
      : logits(static_cast<const Logit*>(model.logits) + entry * model.entry_stride + position * model.row_stride),
        size(size),
        scale(Real(1 / model.temperature)) {}

  Index num_tiles() const { return (size + TILE - 1) / TILE; }
  Index length(Index tile) const { return std::min(TILE, size - tile * TILE); }
  // s_x of Eq. 0, of the token with this logit; NaN stays NaN.
  static Real scaled(Real logit, Index token, Real scale, Real least, Index first_tie) {
    return (logit < least) | ((logit == least) & (token < first_tie)) ? Real(-INFINITE) : logit * scale;
  }
  Real scaled(Index token) const { return scaled(number(logits[token]), token, scale, least, first_tie); }

  double prob(Index token) const { return exponential(at_most_0(scaled(token) - top)) / sum; }

  // Write s of a tile's tokens to `out`; return the largest. Members are copied, or each write to `out` might change them.
  Real load(Index tile, Real* out) const {
    const Logit* from = logits + tile * TILE;
    const Index count = length(tile), tie = first_tie - tile * TILE;
    const Real factor = scale, limit = least;
    Real largest = Real(-INFINITE);
    if (limit == Real(-INFINITE)) {
#pragma omp simd reduction(max : largest)
      for (Index i = 0; i < count; ++i) {
        const Real value = number(from[i]) * factor;
        out[i] = value;
        largest = value > largest ? value : largest;
      }
    } else {
#pragma omp simd reduction(max : largest)
      for (Index i = 0; i < count; ++i) {
        const Real value = scaled(number(from[i]), i, factor, limit, tie);
        out[i] = value;
        largest = value > largest ? value : largest;
      }
    }
    return largest;
  }

  // Eq. 8 of one tile. A NaN in it makes its sum NaN; -inf is its top where it holds nothing else.
  void measure_tile(Index tile) {
    Real scaled_logits[TILE], total = 0;
    const Real largest = load(tile, scaled_logits), shift = largest > Real(-INFINITE) ? largest : Real(0);
    const Index count = length(tile);
    const Logit* ahead = logits + std::max<Index>(0, std::min((tile + 1) * TILE, size - TILE));  // comes while this is summed
    for (Index first = 0; first < count; first += CHUNK) {
      for (Index i = first; i < first + CHUNK; i += LINE / sizeof(Logit)) __builtin_prefetch(ahead + i);
      const Index last = std::min(first + CHUNK, count);
#pragma omp simd reduction(+ : total)
      for (Index i = first; i < last; ++i) total += exponential(scaled_logits[i] - shift);
    }
    tops[tile] = largest;
    sums[tile] = total;
  }

  // Eqs. 8 and 9. A NaN anywhere makes `sum` NaN, and so does +inf; a row of -inf has top -inf, whose probabilities are NaN.
  void measure() {
    tops.resize(num_tiles());
    sums.resize(num_tiles());
    const Index threads = threads_for(num_tiles());
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index tile = 0; tile < num_tiles(); ++tile) measure_tile(tile);
    top = *std::max_element(tops.begin(), tops.end());
    sum = 0;
    for (Index tile = 0; tile < num_tiles(); ++tile) sum += tile_sum(tile);
  }

  // S_k e^(m_k - m), a summand of Eq. 9.
  double tile_sum(Index tile) const { return sums[tile] == 0 ? 0 : sums[tile] * exponential(tops[tile] - top); }

  // The `count` largest logits and those equal to the last of them, in no order; without NaN. Only blocks are read that hold one:
  // the count-th largest of the blocks' largest logits is no larger than the count-th largest of all.
  std::vector<Entry> largest(Index count) const {
    const Index num_blocks = (size + BLOCK - 1) / BLOCK;
    std::vector<Real> block_tops(num_blocks);
    for (Index block = 0; block < num_blocks; ++block) {
      const Logit* from = logits + block * BLOCK;
      const Index filled = std::min(BLOCK, size - block * BLOCK);
      Real block_top = Real(-INFINITE);
#pragma omp simd reduction(max : block_top)
      for (Index i = 0; i < filled; ++i) {
        const Real logit = number(from[i]);
        block_top = logit > block_top ? logit : block_top;
      }
      block_tops[block] = block_top;
    }
    Real bound = Real(-INFINITE);
    if (count <= num_blocks) {
      std::vector<Real> ordered = block_tops;
      std::nth_element(ordered.begin(), ordered.begin() + (count - 1), ordered.end(), std::greater<Real>());
      bound = ordered[count - 1];
    }
    std::vector<Entry> found;
    for (Index block = 0; block < num_blocks; ++block) {
      if (block_tops[block] < bound) continue;
      for (Index token = block * BLOCK; token < std::min(size, (block + 1) * BLOCK); ++token) {
        const Real logit = number(logits[token]);
        if (logit >= bound) found.push_back({logit, token});
      }
    }
    return found;
  }

  // All ties of the k-th logit stay.
  void keep_top_k(Index top_k) {
    std::vector<Entry> found = largest(top_k);
    if (Index(found.size()) < top_k) return;  // the others are NaN, and are found later
    std::nth_element(found.begin(), found.begin() + (top_k - 1), found.end());
    least = found[top_k - 1].logit;
  }

  // The token that crosses top_p stays; of those tied with it, the later ones.
  void keep_nucleus(double top_p) {
    measure();
    if (!(sum > 0)) return;
    const Real lowest = least;
    for (Index count = NUCLEUS;; count *= 8) {
      std::vector<Entry> found = largest(std::min(count, size));
      std::sort(found.begin(), found.end());
      double mass = 0;
      for (const Entry& entry : found) {
        if (mass >= top_p * sum || entry.logit < lowest) break;
        mass += exponential(entry.logit * scale - top);
        least = entry.logit;
        first_tie = entry.token;
      }
      if (mass >= top_p * sum || count >= size) return;
    }
  }
};

template <class Logit>
Row<Logit> evaluated(const Model& model, Index entry, Index position, Index size) {
  Row<Logit> row(model, entry, position, size);
  if (model.top_k < size) row.keep_top_k(model.top_k);
  if (model.top_p < 1) row.keep_nucleus(model.top_p);
  row.measure();
  return row;
}

// The law of a row's last token, Eq. 12: the target's, or what is left of it without a draft's law or the token of a point mass.
template <class Logit>
struct Weights {
  using Real = typename Row<Logit>::Real;

  const Row<Logit>& target;
  const Row<Logit>* draft = nullptr;
  Index excluded = -1;

  bool is_residual() const { return draft != nullptr || excluded >= 0; }

  // Write w of a tile's tokens to `out`; return their sum W_k. NaN stays.
  double load(Index tile, Real* out) const {
    const Index count = target.length(tile);
    const Real top = target.top, factor = Real(1 / target.sum);
    target.load(tile, out);
    for (Index i = 0; i < count; ++i) out[i] = exponential(out[i] - top) * factor;
    if (draft != nullptr) {
      Real own[TILE];
      draft->load(tile, own);
      const Real own_top = draft->top, own_factor = Real(1 / draft->sum);
      for (Index i = 0; i < count; ++i) {
        const Real left = out[i] - exponential(at_most_0(own[i] - own_top)) * own_factor;
        out[i] = left < 0 ? Real(0) : left;
      }
    } else if (excluded >= tile * TILE && excluded < tile * TILE + count) {
      out[excluded - tile * TILE] = 0;
    }
    Real total = 0;
#pragma omp simd reduction(+ : total)
    for (Index i = 0; i < count; ++i) total += out[i];
    return total;
  }

  // Eq. 13: the tile in which the cumulative weight exceeds `uniform` of the whole, then the token. V where nothing can be drawn.
  Index draw(double uniform) const {
    Real weights[TILE];
    std::vector<double> sums(target.num_tiles());
    double total = 0;
    const Index threads = is_residual() ? threads_for(target.num_tiles()) : 1;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (Index tile = 0; tile < target.num_tiles(); ++tile) {
      Real own[TILE];
      sums[tile] = is_residual() ? load(tile, own) : target.tile_sum(tile) / target.sum;
    }
    for (const double one : sums) total += one;
    if (total == 0 && is_residual()) return Weights{target}.draw(uniform);
    if (!(total > 0 && total < INFINITE)) return target.size;
    const double goal = uniform * (total * BELOW_ONE);
    double reached = 0;
    Index tile = 0;
    for (; tile + 1 < target.num_tiles() && reached + sums[tile] <= goal; ++tile) reached += sums[tile];
    load(tile, weights);
    // A tile's sum rounds apart from the sum of its tokens: a goal between the two belongs to the last of them that weighs.
    Index drawn = target.size;
    for (Index i = 0; i < target.length(tile) && reached <= goal; ++i) {
      if (!(weights[i] > 0)) continue;
      reached += weights[i];
      drawn = tile * TILE + i;
    }
    return drawn;
  }
};

}  // namespace laws
}  // namespace
