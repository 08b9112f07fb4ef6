// Products of a few rows with a large weight: out = rows * weight + onto + bias.
//
// A weight [depth, width] lies in memory row by row. It is far larger than the rows and the outputs, so its way from memory is
// what takes time: it is read once, whatever the number of rows. DEPTH of its rows at a time are multiplied into tiles of
// outputs, which stay in registers meanwhile. Every output is a sum in the order of depth, whatever the number of rows and
// threads: one token alone and the same token among six get the same bits.

#pragma once

#include <algorithm>
#include <cstring>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int VECTOR_BYTES = 16, REGISTERS = 32;
#else
constexpr int VECTOR_BYTES = 16, REGISTERS = 16;
#endif

constexpr int MOST_ROWS = 8;      // whose outputs fit into registers; more are done in groups, with the weight in the cache
constexpr long DEPTH = 32;        // rows of the weight at a time: so many streams are read side by side
constexpr long STRIP = 4096;      // columns of the weight at a time: DEPTH times as many numbers stay in the cache
constexpr long AHEAD = 24;        // rows of the weight that are asked for before they are needed
constexpr long LINE = 16;         // columns that no two threads share
constexpr long SHARED = 1L << 17; // numbers of the smallest weight that is worth a second thread

template <typename Number>
struct Vector {
  typedef Number type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Number))));
  static constexpr long SIZE = VECTOR_BYTES / sizeof(Number);
};

template <typename Number>
struct Product {
  const Number* weight;
  const Number* bias;  // or null
  long stride, depth, width;
};

// The number of vectors beside one another that so many rows have in registers, together with as many of the weight.
constexpr int vectors(int rows) { return std::max(1, std::min(8, (REGISTERS - 2) / (rows + 1))); }

inline long thread_count() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

// Add the products of ROWS rows with COUNT vectors of columns of the weight. Behind its rows those of the tile `next` are needed: they
// are asked for into the second cache, which has more room for what is on its way than the first.
template <int ROWS, int COUNT, typename Number>
inline void add_tile(const Number* rows, long row_stride, const Number* weight, long stride, long depth, Number* out,
                     long out_stride, const Number* next) {
  using Lanes = typename Vector<Number>::type;
  constexpr long SIZE = Vector<Number>::SIZE;
  Lanes sums[ROWS][COUNT];
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < COUNT; i++) sums[row][i] = *(const Lanes*)(out + row * out_stride + i * SIZE);
  for (long k = 0; k < depth; k++) {
    const Number* from = weight + k * stride;
    const Number* ahead = k + AHEAD < depth ? from + AHEAD * stride : next + (k + AHEAD - depth) * stride;
    Lanes values[COUNT];
    for (int i = 0; i < COUNT; i++) {
      values[i] = *(const Lanes*)(from + i * SIZE);
      __builtin_prefetch(ahead + i * SIZE, 0, 2);
    }
    for (int row = 0; row < ROWS; row++)
      for (int i = 0; i < COUNT; i++) sums[row][i] += rows[row * row_stride + k] * values[i];
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < COUNT; i++) *(Lanes*)(out + row * out_stride + i * SIZE) = sums[row][i];
}

// Add the products with columns: COUNT vectors at a time, what is left with half as many, at last single columns.
template <int ROWS, int COUNT, typename Number>
void add_columns(const Number* rows, long row_stride, const Number* weight, long stride, long depth, Number* out,
                 long out_stride, long columns) {
  constexpr long TILE = COUNT * Vector<Number>::SIZE;
  long column = 0;
  for (; column + TILE <= columns; column += TILE)
    add_tile<ROWS, COUNT>(rows, row_stride, weight + column, stride, depth, out + column, out_stride,
                          column + 2 * TILE <= columns ? weight + column + TILE : weight + DEPTH * stride);
  if constexpr (COUNT > 1)
    add_columns<ROWS, COUNT / 2>(rows, row_stride, weight + column, stride, depth, out + column, out_stride,
                                 columns - column);
  else
    for (long k = 0; k < depth; k++)  // outside, or compilers round the first of a sum's terms otherwise than its last
      for (int row = 0; row < ROWS; row++)
        for (long left = column; left < columns; left++)
          out[row * out_stride + left] += rows[row * row_stride + k] * weight[k * stride + left];
}

template <typename Number>
void add(long count, const Number* rows, long row_stride, const Number* weight, long stride, long depth, Number* out,
         long out_stride, long columns) {
  constexpr decltype(&add_columns<1, 1, Number>) by_rows[MOST_ROWS] = {
      add_columns<1, vectors(1), Number>, add_columns<2, vectors(2), Number>, add_columns<3, vectors(3), Number>,
      add_columns<4, vectors(4), Number>, add_columns<5, vectors(5), Number>, add_columns<6, vectors(6), Number>,
      add_columns<7, vectors(7), Number>, add_columns<8, vectors(8), Number>};
  for (long first = 0; first < count; first += MOST_ROWS)
    by_rows[std::min<long>(count - first, MOST_ROWS) - 1](rows + first * row_stride, row_stride, weight, stride, depth,
                                                          out + first * out_stride, out_stride, columns);
}

// Begin with what is added to the products: onto, bias, both or nothing.
template <typename Number>
void begin(const Number* onto, const Number* bias, Number* out, long columns) {
  if (onto == out && out) {
    // begun already
  } else if (onto || bias)
    std::memcpy(out, onto ? onto : bias, columns * sizeof(Number));
  else
    std::memset(out, 0, columns * sizeof(Number));
  if (onto && bias)
    for (long column = 0; column < columns; column++) out[column] += bias[column];
}

// The number of threads for a product: a small weight is not worth a second one.
inline long threads_for(long size) { return size < SHARED ? 1 : thread_count(); }

// The columns from ``first`` to ``last`` that one of several threads makes: no two threads share a line of memory.
struct Columns {
  long first, last;
  Columns(long width, long thread, long threads) {
    const long each = ((width + threads - 1) / threads + LINE - 1) / LINE * LINE;
    first = std::min(width, thread * each), last = std::min(width, first + each);
  }
};

// Make some columns of out = rows * weight + bias (+ onto, which may be out itself), a strip of them at a time.
template <typename Number>
void multiply(const Product<Number>& product, const Number* rows, long row_stride, long count, const Number* onto, Number* out,
              Columns columns) {
  const long all = columns.last - columns.first, strips = (all + STRIP - 1) / STRIP;
  const long each = strips ? ((all + strips - 1) / strips + LINE - 1) / LINE * LINE : LINE;
  for (long first = columns.first; first < columns.last; first += each) {
    const long width = std::min(each, columns.last - first);
    for (long row = 0; row < count; row++) {
      const long place = row * product.width + first;
      begin(onto ? onto + place : nullptr, product.bias ? product.bias + first : nullptr, out + place, width);
    }
    for (long k = 0; k < product.depth; k += DEPTH)
      add(count, rows + k, row_stride, product.weight + k * product.stride + first, product.stride,
          std::min(DEPTH, product.depth - k), out + first, product.width, width);
  }
}

}  // namespace
