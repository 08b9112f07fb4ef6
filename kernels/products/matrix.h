// Products of rows with a weight: out = rows * weight + onto + bias.
//
// A weight [depth, width] lies in memory row by row. It is far larger than the rows and the outputs, so its way from memory is
// what takes time: it is read once, whatever the number of rows. DEPTH of its rows at a time are multiplied into tiles of
// outputs, which stay in registers meanwhile. Two threads read fastest where each has rows of its own: half of them each, so that
// `multiply` makes the outputs of both halves and `join` adds them. Every output is the sum of these two, each in the order of
// depth, whatever the number of rows and threads: one token alone and the same token among six get the same bits. For many rows
// arithmetic takes the time: `multiply_many` goes over all of them with one tile of the weight after another.
//
// A weight may be stored in fewer bytes than it is multiplied in: as bfloat16, the upper half of a float's bits, or as int8 times
// a scale for each column. Its numbers are widened in registers.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __AVX2__
#include <immintrin.h>
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

// MOST_ROWS: whose outputs fit into registers; more are done in equal groups, with the weight in the cache. DEPTH: rows of the
// weight at a time, so many streams are read side by side. With caches of eight ways 32 rows that lie a power of two apart drive
// one another out before they are used: 8 took two thirds of the time on a processor without AVX-512. With 32 registers, and the
// larger caches that go with them, 32 rows were measured best there; for weights in memory see `rows_at_once`.
constexpr int MOST_ROWS = REGISTERS == 32 ? 14 : 6;
constexpr long DEPTH = REGISTERS == 32 ? 32 : 8;
constexpr long LINES_AHEAD = 256;     // of a weight in memory that are asked for before they are needed
constexpr long STRIP = 4096;          // columns of the weight at a time: DEPTH times as many numbers stay in the cache
constexpr long LINE = 16;             // columns that no two threads share
constexpr long LINE_BYTES = 64;
constexpr long FEW = 4 * MOST_ROWS;   // rows: for more a tile of the weight is worth a copy
constexpr long MOST_KEPT = 1L << 20;  // numbers of a buffer that a thread keeps for its next call
constexpr long PAGE_BYTES = 4096;     // or more, but a multiple
constexpr long WAYS = 8;              // lines at the same place of a page that the first cache holds, in most processors
constexpr long APART = 36 * MOST_ROWS; // rows that are copied at a time: for fewer a tile of the weight would be copied too often
constexpr long SHARED = 1L << 15;     // numbers of the smallest weight that is worth a second thread
constexpr long NEAR = 1L << 18;       // numbers of the largest weight that a core's caches may hold
constexpr int MOST_AGAIN = 5;         // rows: more than these find no use in lines that are read again

template <typename Number>
struct Vector {
  typedef Number type __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(Number))));
  static constexpr long SIZE = VECTOR_BYTES / sizeof(Number);
};

enum Storage : long { WIDE, BFLOAT16, INT8 };

// Mirrored by `ProductArguments` of matrix.py. The weight's numbers are stored as `storage` says; fp64 is always WIDE.
template <typename Number>
struct Product {
  const void* weight;
  const Number* bias;    // or null
  const Number* scales;  // of the columns in INT8
  long stride, depth, width, storage;
};

struct Bfloat16 {
  std::uint16_t bits;
};
template <typename Stored>
constexpr bool SCALED = std::is_same_v<Stored, std::int8_t>;

// One vector of the weight's numbers, or one number, as they are multiplied; int8 still without its scale.
template <typename Number, std::enable_if_t<std::is_floating_point_v<Number>, int> = 0>
inline typename Vector<Number>::type widened(const Number* from) {
  return *(const typename Vector<Number>::type*)from;
}
inline Vector<float>::type widened(const Bfloat16* from) {
  typedef std::uint16_t Stored __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2)));
  typedef std::uint32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
  return (Vector<float>::type)(__builtin_convertvector(*(const Stored*)from, Bits) << 16);
}
inline Vector<float>::type widened(const std::int8_t* from) {
#if defined(__AVX512F__)  // compilers make eight operations of what these processors do in one
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  typedef std::int8_t Stored __attribute__((vector_size(VECTOR_BYTES / 4), aligned(1)));
  return __builtin_convertvector(*(const Stored*)from, Vector<float>::type);
#endif
}
template <typename Number>
inline Number one_widened(Number stored) {
  return stored;
}
inline float one_widened(std::int8_t stored) { return stored; }
inline float one_widened(Bfloat16 stored) {
  const std::uint32_t bits = std::uint32_t(stored.bits) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// to + a * b, rounded once wherever the processor can: left to itself, a compiler does so for some numbers of rows and not for others.
template <typename Number>
inline Number added(Number a, Number b, Number to) {
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
  if constexpr (std::is_same_v<Number, float>)
    return __builtin_fmaf(a, b, to);
  else
    return __builtin_fma(a, b, to);
#else
  return to + a * b;
#endif
}

// The same for vectors.
#if defined(__AVX512F__)
inline Vector<float>::type added(Vector<float>::type a, Vector<float>::type b, Vector<float>::type to) {
  return (Vector<float>::type)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)to);
}
inline Vector<double>::type added(Vector<double>::type a, Vector<double>::type b, Vector<double>::type to) {
  return (Vector<double>::type)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)to);
}
#elif defined(__AVX2__) && defined(__FMA__)
inline Vector<float>::type added(Vector<float>::type a, Vector<float>::type b, Vector<float>::type to) {
  return (Vector<float>::type)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)to);
}
inline Vector<double>::type added(Vector<double>::type a, Vector<double>::type b, Vector<double>::type to) {
  return (Vector<double>::type)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)to);
}
#else
inline Vector<float>::type added(Vector<float>::type a, Vector<float>::type b, Vector<float>::type to) { return to + a * b; }
inline Vector<double>::type added(Vector<double>::type a, Vector<double>::type b, Vector<double>::type to) { return to + a * b; }
#endif

// A number in every place of a vector.
#if defined(__AVX512F__)
inline Vector<float>::type everywhere(float number) { return (Vector<float>::type)_mm512_set1_ps(number); }
inline Vector<double>::type everywhere(double number) { return (Vector<double>::type)_mm512_set1_pd(number); }
#elif defined(__AVX2__)
inline Vector<float>::type everywhere(float number) { return (Vector<float>::type)_mm256_set1_ps(number); }
inline Vector<double>::type everywhere(double number) { return (Vector<double>::type)_mm256_set1_pd(number); }
#else
template <typename Number>
inline typename Vector<Number>::type everywhere(Number number) {
  return number - typename Vector<Number>::type{};
}
#endif

// The number of vectors beside one another that so many rows have in registers, together with as many of the weight. It is even,
// so that a tile of narrow vectors does not end in the middle of a line, which would be read twice, and that tiles of wide ones,
// where there are more than three, leave few columns of usual weights over. `few`: 5 and 6 rows of fp32 from memory take 2 to 5 %
// longer with 4 than with 3 on a Zen 4.
constexpr int vectors(int rows, bool few = false) {
  const int most = std::max(1, std::min(few && rows > 4 ? 3 : 8, (REGISTERS - 2) / (rows + 1)));
  return most > (VECTOR_BYTES < LINE_BYTES ? 1 : 3) ? most / 2 * 2 : most;
}

// The rows of a weight that are multiplied at a time. Memory is read faster in few streams: on a Zen 4 one or two rows of outputs took
// 0.87 of the time with 8 in place of 32. More outputs take longer to read and store, which is done once for so many: six of them took
// 0.93 of the time with 32 in place of 8, twelve 0.7, and 0.94 of that with 64. Sums of int8 are scaled once so many are added, so that
// they have the same depth everywhere, for the bits.
template <typename Stored>
constexpr long rows_at_once(int rows, bool far) {
  if (!far || REGISTERS < 32 || SCALED<Stored>) return DEPTH;
  return rows <= 3 ? 8 : rows <= 8 ? 32 : 64;
}

// How many tiles on lies what is asked for while one is multiplied: of a weight in a core's caches the next.
template <int ROWS, int COUNT, bool far, typename Number, typename Stored>
constexpr long tiles_ahead() {
  constexpr long width = std::max(1L, long(COUNT * Vector<Number>::SIZE * sizeof(Stored)) / LINE_BYTES);
  constexpr long lines = width * rows_at_once<Stored>(ROWS, far);
  return far ? (LINES_AHEAD + lines - 1) / lines : 1;
}

// Keep a vector of the weight in a register: a compiler that finds it cheap to read again does so for every row.
template <typename Number>
inline void keep(typename Vector<Number>::type& value) {
#if defined(__AVX512F__)
  asm("" : "+v"(value));
#elif defined(__AVX2__)
  asm("" : "+x"(value));
#else
  (void)value;
#endif
}

// Add the products of ROWS rows with COUNT vectors of columns of the weight. Beside each of its rows that of the tile `ahead` is asked
// for, into the second cache, which has more room for what is on its way than the first (tried on AMD's processors too: with the
// first, 1 to 8 rows take 12 to 30 % longer on a Zen 4). Columns with scales are summed by themselves first.
//
// A vector that is a line is kept in a register, or of a weight that is `far`, in memory, read again by each of a few rows, and by one
// row alone twice. Measured on a Zen 4: from its caches 2 and 4 rows take 1.2 and 1.8 times as long with lines that are read again,
// as each takes the core a whole cycle; from memory lines that are read once take 1 to 4 rows 6 to 20 % longer, for whatever reason.
template <int ROWS, int COUNT, bool far, typename Number, typename Stored>
__attribute__((always_inline))
inline void add_tile(const Number* rows, long row_stride, const Stored* weight, long stride, long depth, Number* out,
                     long out_stride, const Stored* ahead, const Number* scales) {
  using Lanes = typename Vector<Number>::type;
  constexpr long SIZE = Vector<Number>::SIZE, LINE_SIZE = LINE_BYTES / sizeof(Stored);
  constexpr bool again = far && ROWS <= MOST_AGAIN && VECTOR_BYTES == LINE_BYTES && sizeof(Stored) == sizeof(Number);
  Lanes sums[ROWS][COUNT];
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) sums[row][i] = SCALED<Stored> ? Lanes{} : *(const Lanes*)(out + row * out_stride + i * SIZE);
  for (long k = 0; k < depth; k++) {
    const Stored* from = weight + k * stride;
    Lanes values[COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) {
      values[i] = widened(from + i * SIZE);
      if (ROWS > 1 && !again) keep<Number>(values[i]);
      if (ROWS == 1 && again) (void)*(const volatile char*)(from + i * SIZE);
    }
    // From its end: where a tile is narrower than a line, the line that it begins in was asked for with the tile before.
    for (long last = COUNT * SIZE - 1; last >= 0; last -= LINE_SIZE) __builtin_prefetch(ahead + k * stride + last, 0, 2);
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++) {
      const Lanes factor = everywhere(rows[row * row_stride + k]);
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i++) sums[row][i] = added(factor, values[i], sums[row][i]);
    }
  }
#pragma GCC unroll 16
  for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
    for (int i = 0; i < COUNT; i++) {
      Lanes* to = (Lanes*)(out + row * out_stride + i * SIZE);
      if constexpr (SCALED<Stored>)
        *to = added(sums[row][i], *(const Lanes*)(scales + i * SIZE), *to);
      else
        *to = sums[row][i];
    }
}

// Add the products with columns: COUNT vectors at a time, what is left with half as many, at last single columns.
template <int ROWS, int COUNT, bool far, typename Number, typename Stored>
void add_columns(const Number* rows, long row_stride, const Stored* weight, long stride, long depth, Number* out,
                 long out_stride, long columns, const Number* scales) {
  constexpr long TILE = COUNT * Vector<Number>::SIZE, AHEAD = TILE * tiles_ahead<ROWS, COUNT, far, Number, Stored>();
  const long whole = columns / TILE * TILE, below = rows_at_once<Stored>(ROWS, far) * stride;
  const Stored* ahead = weight;
  long column = 0;
  for (long place = AHEAD; column < whole; column += TILE, place += TILE) {
    for (; place >= whole; place -= whole) ahead += below;  // behind the last tile come those of the rows below
    add_tile<ROWS, COUNT, far>(rows, row_stride, weight + column, stride, depth, out + column, out_stride, ahead + place,
                               SCALED<Stored> ? scales + column : nullptr);
  }
  if constexpr (COUNT > 1)
    add_columns<ROWS, COUNT / 2, far>(rows, row_stride, weight + column, stride, depth, out + column, out_stride,
                                      columns - column, SCALED<Stored> ? scales + column : nullptr);
  else
    for (long k = 0; k < depth; k++)  // outside, or compilers round the first of a sum's terms otherwise than its last
      for (int row = 0; row < ROWS; row++)
        for (long left = column; left < columns; left++) {
          const Number value = one_widened(weight[k * stride + left]);
          Number* to = out + row * out_stride + left;
          if constexpr (SCALED<Stored>)
            *to = added(rows[row * row_stride + k], value * scales[left], *to);
          else
            *to = added(rows[row * row_stride + k], value, *to);
        }
}

// `add_columns` for 1, 2, ... rows.
template <bool far, typename Number, typename Stored, int... fewer>
constexpr auto by_count(std::integer_sequence<int, fewer...>) {
  return std::array<decltype(&add_columns<1, 1, far, Number, Stored>), sizeof...(fewer)>{
      add_columns<fewer + 1, vectors(fewer + 1, far && sizeof(Stored) == sizeof(Number)), far, Number, Stored>...};
}

// The size of equal groups of rows that fit into registers.
inline long group_size(long count) {
  const long groups = (count + MOST_ROWS - 1) / MOST_ROWS;
  return groups ? (count + groups - 1) / groups : 0;
}

template <typename Number, typename Stored = Number>
void add(long count, const Number* rows, long row_stride, const Stored* weight, long stride, long depth, Number* out,
         long out_stride, long columns, const Number* scales = nullptr, bool far = false) {
  static constexpr std::make_integer_sequence<int, MOST_ROWS> rows_of;
  static constexpr auto near_by = by_count<false, Number, Stored>(rows_of), far_by = by_count<true, Number, Stored>(rows_of);
  const auto& by_rows = far ? far_by : near_by;
  const long most = group_size(count);
  for (long first = 0; first < count; first += most)
    by_rows[std::min(count - first, most) - 1](rows + first * row_stride, row_stride, weight, stride, depth,
                                               out + first * out_stride, out_stride, columns, scales);
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

// Give a large buffer back.
template <typename Number>
void release(std::vector<Number>& buffer) {
  if (long(buffer.size()) > MOST_KEPT) std::vector<Number>().swap(buffer);
}

// Do `work(thread, threads)` with every thread of a team.
template <typename Work>
void by_team(long threads, const Work& work) {
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
  work(long(omp_get_thread_num()), long(omp_get_num_threads()));
#else
  work(0L, 1L);
#endif
}

// Where the threads of a team wait for one another. Whoever waits long gives up its core: the others may need it, where a machine
// has other work too (a barrier of OpenMP keeps it for milliseconds).
class Gate {
 public:
  void wait(long threads) {
    if (threads == 1) return;
    const long turn = passed.load(std::memory_order_relaxed);
    if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
      arrived.store(0, std::memory_order_relaxed);
      passed.store(turn + 1, std::memory_order_release);
      return;
    }
    for (long spins = 0; passed.load(std::memory_order_acquire) == turn; spins++)
      if (spins > MOST_SPINS) std::this_thread::yield();
  }

 private:
  static constexpr long MOST_SPINS = 1L << 14;  // some microseconds
  std::atomic<long> arrived{0}, passed{0};
};

// Of so many threads those for a product: a small weight is not worth a second one.
inline long threads_for(long size, long most) { return size < SHARED ? 1 : most; }

// The columns from ``first`` to ``last`` that one of several threads makes: no two threads share a line of memory.
struct Columns {
  long first, last;
  Columns(long width, long thread, long threads) {
    const long each = ((width + threads - 1) / threads + LINE - 1) / LINE * LINE;
    first = std::min(width, thread * each), last = std::min(width, first + each);
  }
  // As many columns, so many others further on.
  Columns behind(long others) const {
    Columns moved = *this;
    moved.first += others, moved.last += others;
    return moved;
  }
};

template <typename Stored, typename Number>
void multiply_stored(const Product<Number>& product, const Number* rows, long row_stride, long count, const Number* onto,
                     Number* out, long from, long to, Columns columns) {
  const long all = columns.last - columns.first, strips = (all + STRIP - 1) / STRIP;
  const long each = strips ? ((all + strips - 1) / strips + LINE - 1) / LINE * LINE : LINE;
  const Stored* weight = (const Stored*)product.weight;
  const bool far = product.depth * product.width > NEAR;
  const long depth = rows_at_once<Stored>(group_size(count), far);
  for (long first = columns.first; first < columns.last; first += each) {
    const long width = std::min(each, columns.last - first);
    for (long row = 0; row < count; row++) {
      const long place = row * product.width + first;
      begin(onto ? onto + place : nullptr, product.bias && !from ? product.bias + first : nullptr, out + place, width);
    }
    for (long k = from; k < to; k += depth)
      add(count, rows + k, row_stride, weight + k * product.stride + first, product.stride, std::min(depth, to - k), out + first,
          product.width, width, SCALED<Stored> ? product.scales + first : nullptr, far);
  }
}

// Make one thread's part of out = rows * weight + bias (+ onto, which may be out itself), by the first half of the weight's rows,
// and of `second`, which is as large, by the others. Once all threads have made theirs, `join` adds `second` to out.
template <typename Number>
void multiply(const Product<Number>& product, const Number* rows, long row_stride, long count, const Number* onto, Number* out,
              Number* second, long thread, long threads) {
  const long half = (product.depth + 1) / 2, groups = threads % 2 ? threads : threads / 2;
  for (long unit = thread; unit < 2 * groups; unit += threads) {
    const bool first = unit < groups;
    const Columns columns(product.width, unit % groups, groups);
    const Number* start = first ? onto : nullptr;
    Number* to = first ? out : second;
    const long from = first ? 0 : half, end = first ? half : product.depth;
    if constexpr (std::is_same_v<Number, float>) {
      if (product.storage == BFLOAT16) {
        multiply_stored<Bfloat16>(product, rows, row_stride, count, start, to, from, end, columns);
        continue;
      }
      if (product.storage == INT8) {
        multiply_stored<std::int8_t>(product, rows, row_stride, count, start, to, from, end, columns);
        continue;
      }
    }
    multiply_stored<Number>(product, rows, row_stride, count, start, to, from, end, columns);
  }
}

// Add what `multiply` made of the second half, in some columns of `count` rows.
template <typename Number>
void join(Number* out, const Number* second, long width, long count, Columns columns) {
  for (long row = 0; row < count; row++, out += width, second += width)
    for (long column = columns.first; column < columns.last; column++) out[column] += second[column];
}

// Columns of a tile of `multiply_many`.
template <typename Number>
constexpr long TILE_COLUMNS = vectors(MOST_ROWS) * Vector<Number>::SIZE;

// Make a tile of the outputs of ROWS rows. The sums of the depth's halves are joined as `join` does.
template <int ROWS, typename Number>
void make_tile(const Number* rows, long row_stride, const Number* tile, long depth, const Number* onto, const Number* bias,
               Number* out, long out_stride, long columns) {
  using Lanes = typename Vector<Number>::type;
  constexpr long SIZE = Vector<Number>::SIZE;
  constexpr int COUNT = TILE_COLUMNS<Number> / SIZE;
  Lanes sums[ROWS][COUNT], firsts[ROWS][COUNT];
  const auto each = [](const auto& work) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i++) work(row, i);
  };
  const auto add_half = [&](long from, long to) __attribute__((always_inline)) {
    for (long k = from; k < to; k++) {
      Lanes values[COUNT];
#pragma GCC unroll 16
      for (int i = 0; i < COUNT; i++) {
        values[i] = *(const Lanes*)(tile + k * TILE_COLUMNS<Number> + i * SIZE);
        keep<Number>(values[i]);
      }
#pragma GCC unroll 16
      for (int row = 0; row < ROWS; row++) {
        const Lanes factor = everywhere(rows[row * row_stride + k]);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; i++) sums[row][i] = added(factor, values[i], sums[row][i]);
      }
    }
  };
  for (int row = 0; row < ROWS; row++) begin(onto ? onto + row * out_stride : nullptr, bias, (Number*)firsts[row], columns);
  each([&](int row, int i) { sums[row][i] = firsts[row][i]; });
  const long half = (depth + 1) / 2;
  add_half(0, half);
  each([&](int row, int i) { firsts[row][i] = sums[row][i], sums[row][i] = Lanes{}; });
  add_half(half, depth);
  each([&](int row, int i) { firsts[row][i] += sums[row][i]; });
  for (int row = 0; row < ROWS; row++)  // the size of a whole tile is a constant, by which copying is fast
    std::memcpy(out + row * out_stride, firsts[row], (columns == TILE_COLUMNS<Number> ? TILE_COLUMNS<Number> : columns) * sizeof(Number));
}

// `make_tile` for 1, 2, ... rows.
template <typename Number, int... fewer>
constexpr auto tile_by_count(std::integer_sequence<int, fewer...>) {
  return std::array<decltype(&make_tile<1, Number>), sizeof...(fewer)>{make_tile<fewer + 1, Number>...};
}

// Whether so many rows are made by `multiply_many`; int8 sums a few rows of the weight at a time before they are scaled.
template <typename Number>
bool are_many(long count, const Product<Number>& product) {
  return count > FEW && product.storage != INT8;
}

// Copy a tile of the weight, so that its columns lie side by side.
template <typename Number, typename Stored>
void copy_tile(const Product<Number>& product, long first, long width, Number* tile) {
  const Stored* from = (const Stored*)product.weight + first;
  for (long k = 0; k < product.depth; k++, from += product.stride, tile += TILE_COLUMNS<Number>)
    if (width == TILE_COLUMNS<Number>)
      for (long column = 0; column < width; column += Vector<Number>::SIZE) {
        __builtin_prefetch(from + width + column, 0, 2);  // of the next tile
        *(typename Vector<Number>::type*)(tile + column) = widened(from + column);
      }
    else
      for (long column = 0; column < width; column++) tile[column] = one_widened(from[column]);
}

// `multiply_many` of rows where they lie.
template <typename Number>
void multiply_block(const Product<Number>& product, const Number* rows, long row_stride, long count, const Number* onto, Number* out,
                    Columns columns) {
  static constexpr auto by_rows = tile_by_count<Number>(std::make_integer_sequence<int, MOST_ROWS>());
  static thread_local std::vector<Number> tile;
  tile.resize(product.depth * TILE_COLUMNS<Number>);
  const long most = group_size(count);
  for (long first = columns.first; first < columns.last; first += TILE_COLUMNS<Number>) {
    const long width = std::min(TILE_COLUMNS<Number>, columns.last - first);
    if constexpr (std::is_same_v<Number, float>) {
      if (product.storage == BFLOAT16) copy_tile<Number, Bfloat16>(product, first, width, tile.data());
    }
    if (product.storage == WIDE) copy_tile<Number, Number>(product, first, width, tile.data());
    for (long row = 0; row < count; row += most) {
      const long place = row * product.width + first;
      by_rows[std::min(count - row, most) - 1](rows + row * row_stride, row_stride, tile.data(), product.depth,
                                               onto ? onto + place : nullptr, product.bias ? product.bias + first : nullptr,
                                               out + place, product.width, width);
    }
  }
}

// Make some columns of out = rows * weight + bias (+ onto) of many rows, to the bit as `multiply` and `join`. The outputs are what
// takes time here: each tile of the weight is copied into the cache and multiplied by all rows. More rows than the first cache has
// ways, of which each begins at the same place of a page, drive one another out of it: these are copied to where they do not.
template <typename Number>
void multiply_many(const Product<Number>& product, const Number* rows, long row_stride, long count, const Number* onto, Number* out,
                   Columns columns) {
  if (MOST_ROWS <= WAYS || row_stride * sizeof(Number) % PAGE_BYTES)
    return multiply_block(product, rows, row_stride, count, onto, out, columns);
  static thread_local std::vector<Number> apart;
  const long depth = product.depth, stride = depth + LINE, most = std::min(count, APART);
  apart.resize(most * stride);
  for (long first = 0; first < count; first += most) {
    const long some = std::min(most, count - first), place = first * product.width;
    for (long row = 0; row < some; row++) std::copy_n(rows + (first + row) * row_stride, depth, apart.data() + row * stride);
    multiply_block(product, apart.data(), stride, some, onto ? onto + place : nullptr, out + place, columns);
  }
  release(apart);
}

// Make out = rows * weight + bias (+ onto) by as many of the threads as pay.
template <typename Number>
void multiply_by_all(const Product<Number>& product, const Number* rows, long count, const Number* onto, Number* out,
                     long most_threads) {
  const long size = product.depth * product.width;
  if (are_many(count, product)) {
    by_team(threads_for(size * (count / MOST_ROWS), most_threads), [&](long thread, long threads) {
      multiply_many(product, rows, product.depth, count, onto, out, Columns(product.width, thread, threads));
    });
    return;
  }
  static thread_local std::vector<Number> seconds;
  seconds.resize(count * product.width);
  Number* second = seconds.data();  // the calling thread's
  Gate gate;
  by_team(threads_for(size, most_threads), [&](long thread, long threads) {
    multiply(product, rows, product.depth, count, onto, out, second, thread, threads);
    gate.wait(threads);
    join(out, second, product.width, count, Columns(product.width, thread, threads));
  });
  release(seconds);
}

}  // namespace
