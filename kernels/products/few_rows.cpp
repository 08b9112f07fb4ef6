// Products of a few rows with a large weight: out = rows * weight + onto + bias.
//
// A weight [depth, width] lies in memory row by row. It is far larger than the rows and the outputs, so its way from memory is
// what takes time: it is read once, whatever the number of rows. DEPTH of its rows at a time are multiplied into tiles of
// outputs, which stay in registers meanwhile. Every output is a sum in the order of depth, whatever the number of rows and
// threads: one token alone and the same token among six get the same bits.

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
constexpr long AHEAD = 8;         // rows of the weight that are asked for before they are needed
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

// Add the products of ROWS rows with COUNT vectors of columns of the weight.
template <int ROWS, int COUNT, typename Number>
inline void add_tile(const Number* rows, long row_stride, const Number* weight, long stride, long depth, Number* out,
                     long out_stride) {
  using Lanes = typename Vector<Number>::type;
  constexpr long SIZE = Vector<Number>::SIZE;
  Lanes sums[ROWS][COUNT];
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < COUNT; i++) sums[row][i] = *(const Lanes*)(out + row * out_stride + i * SIZE);
  for (long k = 0; k < depth; k++) {
    const Number* from = weight + k * stride;
    Lanes values[COUNT];
    for (int i = 0; i < COUNT; i++) {
      values[i] = *(const Lanes*)(from + i * SIZE);
      __builtin_prefetch(from + AHEAD * stride + i * SIZE);
    }
    for (int row = 0; row < ROWS; row++)
      for (int i = 0; i < COUNT; i++) sums[row][i] += rows[row * row_stride + k] * values[i];
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < COUNT; i++) *(Lanes*)(out + row * out_stride + i * SIZE) = sums[row][i];
}

// Add the products with columns: COUNT vectors at a time, what is left with half as many, at last one column after another.
template <int ROWS, int COUNT, typename Number>
void add_columns(const Number* rows, long row_stride, const Number* weight, long stride, long depth, Number* out,
                 long out_stride, long columns) {
  constexpr long TILE = COUNT * Vector<Number>::SIZE;
  long column = 0;
  for (; column + TILE <= columns; column += TILE)
    add_tile<ROWS, COUNT>(rows, row_stride, weight + column, stride, depth, out + column, out_stride);
  if constexpr (COUNT > 1)
    add_columns<ROWS, COUNT / 2>(rows, row_stride, weight + column, stride, depth, out + column, out_stride,
                                 columns - column);
  else
    for (; column < columns; column++)
      for (int row = 0; row < ROWS; row++) {
        Number sum = out[row * out_stride + column];
        for (long k = 0; k < depth; k++) sum += rows[row * row_stride + k] * weight[k * stride + column];
        out[row * out_stride + column] = sum;
      }
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
  if (onto || bias)
    std::memcpy(out, onto ? onto : bias, columns * sizeof(Number));
  else
    std::memset(out, 0, columns * sizeof(Number));
  if (onto && bias)
    for (long column = 0; column < columns; column++) out[column] += bias[column];
}

template <typename Number>
void multiply(const Product<Number>& product, const Number* rows, long count, const Number* onto, Number* out) {
  const long width = product.width, depth = product.depth, stride = product.stride;
  const long threads = depth * width < SHARED ? 1 : thread_count();
  const long strips = threads * ((width + threads * STRIP - 1) / (threads * STRIP));
  const long each = ((width + strips - 1) / strips + LINE - 1) / LINE * LINE;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long first = 0; first < width; first += each) {
    const long columns = std::min(each, width - first);
    for (long row = 0; row < count; row++) {
      const long place = row * width + first;
      begin(onto ? onto + place : nullptr, product.bias ? product.bias + first : nullptr, out + place, columns);
    }
    for (long k = 0; k < depth; k += DEPTH)
      add(count, rows + k, depth, product.weight + k * stride + first, stride, std::min(DEPTH, depth - k),
        out + first, width, columns);
  }
}

}  // namespace

extern "C" {
void multiply_float32(const Product<float>* product, const float* rows, long count, const float* onto, float* out) {
  multiply(*product, rows, count, onto, out);
}
void multiply_float64(const Product<double>* product, const double* rows, long count, const double* onto, double* out) {
  multiply(*product, rows, count, onto, out);
}
}
