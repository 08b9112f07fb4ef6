// Decoder layers of Llama's kind for a few rows, all of them in one call: root mean square norm, rotary positions, grouped
// key heads, gated feed-forward. `gated.py` calls `run_float32` and `run_float64`, at the end.
//
// Between its matrix products a layer makes a dozen small operations, each of which costs more to call than to compute. Threads
// share the columns of a product and the heads of attention, and wait for one another five times a layer. Whatever a row gets
// does not depend on the other rows, nor on the number of threads, to the bit: every sum has an order of its own.

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "../numbers.h"
#include "../products/few_rows.h"

namespace {

enum Activation : long { SILU, GELU_TANH };

// Mirrored by `_Layer` of gated.py. A norm is its gain times the square root of the width.
template <typename Number>
struct Layer {
  const Number* attention_norm;
  const Number* feed_norm;
  Product<Number> qkv, out, gate_up, down;
};

// Mirrored by `_Shape` of gated.py: what all layers share. ``floor`` is the square root of the width times epsilon.
struct Shape {
  long width, heads, key_heads, head_size, activation;
  double floor;
};

// Mirrored by `_Pass` of gated.py. Strides and counts in numbers; ``keys`` are those that the first layer's rows see, the new ones'
// places among them; new key i of a row goes to ``slots`` and is at the position ``position`` + i of the text.
template <typename Number>
struct Pass {
  long batch, num_new, visible, position, layer_stride, row_stride, place_stride;
  Number* keys;
  Number* values;
  Number* new_keys;
  Number* new_values;
  const Number* rotary;  // by position the cosines, then the sines, of which the first half has the minus sign
  Number* hidden;        // the rows that go in and come out
};

// The sum of a function of `size` numbers, in an order that follows from the size alone: it is compiled once, never inlined.
template <typename Number>
__attribute__((noinline)) Number sum_of_squares(const Number* numbers, long size) {
  Number sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < size; i++) sum += numbers[i] * numbers[i];
  return sum;
}

template <typename Number>
void norm(const Number* rows, const Number* gain, long count, long width, Number floor, Number* out) {
  for (long row = 0; row < count; row++) {
    const Number* from = rows + row * width;
    const Number length = std::sqrt(sum_of_squares(from, width) + floor * floor);
    for (long i = 0; i < width; i++) out[row * width + i] = from[i] / length * gain[i];
  }
}

// scores -> probabilities, for the first `seen` of them; the rest becomes 0.
template <typename Number>
__attribute__((noinline)) void softmax(Number* scores, long seen, long size) {
  Number top = scores[0], sum = 0;
#pragma omp simd reduction(max : top)
  for (long i = 0; i < seen; i++) top = scores[i] > top ? scores[i] : top;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < seen; i++) sum += scores[i] = exponential(scores[i] - top);
  const Number share = 1 / sum;
  for (long i = 0; i < seen; i++) scores[i] *= share;
  for (long i = seen; i < size; i++) scores[i] = 0;
}

template <typename Number>
inline Number logistic(Number x) {
  const Number tail = exponential(x < 0 ? x : -x);
  return (x < 0 ? tail : Number(1)) / (1 + tail);
}

// gate = activation(gate) * up
template <typename Number>
void activate(Number* gate, const Number* up, long size, long activation) {
  if (activation == SILU) {
    for (long i = 0; i < size; i++) gate[i] = gate[i] * logistic(gate[i]) * up[i];
  } else {  // 1/2 (1 + tanh(x)) is the logistic function of 2 x
    constexpr Number twice = Number(1.5957691216057308), cubic = Number(0.044715);
    for (long i = 0; i < size; i++)
      gate[i] = gate[i] * logistic(twice * (gate[i] + cubic * gate[i] * gate[i] * gate[i])) * up[i];
  }
}

template <typename Number>
inline void rotate(const Number* from, const Number* rotary, long size, Number scale, Number* out) {
  const long half = size / 2;
  for (long i = 0; i < half; i++) {
    const Number first = from[i], second = from[i + half];
    out[i] = (first * rotary[i] + second * rotary[size + i]) * scale;
    out[i + half] = (second * rotary[i + half] + first * rotary[size + i + half]) * scale;
  }
}

// The products of one query with as many keys at a time as a vector has lanes: the sums of each key lie in a vector of their own;
// neighbours are added until there is one vector with a key's product in each lane.
template <typename Number>
struct Scores {
  using Lanes = typename Vector<Number>::type;
  static constexpr long SIZE = Vector<Number>::SIZE;

  // The lanes first, first + 2, ... of two vectors beside one another.
  template <long first>
  static Lanes every_other(Lanes one, Lanes two) {
#ifdef __clang__
    if constexpr (SIZE == 16)
      return __builtin_shufflevector(one, two, first, first + 2, first + 4, first + 6, first + 8, first + 10, first + 12,
                                     first + 14, first + 16, first + 18, first + 20, first + 22, first + 24, first + 26,
                                     first + 28, first + 30);
    else if constexpr (SIZE == 8)
      return __builtin_shufflevector(one, two, first, first + 2, first + 4, first + 6, first + 8, first + 10, first + 12,
                                     first + 14);
    else if constexpr (SIZE == 4)
      return __builtin_shufflevector(one, two, first, first + 2, first + 4, first + 6);
    else
      return __builtin_shufflevector(one, two, first, first + 2);
#else
    using Index = std::conditional_t<sizeof(Number) == 4, std::int32_t, std::int64_t>;
    typedef Index Indices __attribute__((vector_size(VECTOR_BYTES)));
    Indices places;
    for (long i = 0; i < SIZE; i++) places[i] = first + 2 * i;
    return __builtin_shuffle(one, two, places);
#endif
  }

  // The products of `count` queries, scores a `visible` apart: a few keys at a time, so that they come from memory once.
  static void make(const Number* queries, long count, const Number* keys, long place_stride, long visible, long size,
                   Number* scores) {
    const long whole = size / SIZE * SIZE;
    for (long first = 0; first < visible; first += SIZE) {
      const long left_over = std::min(SIZE, visible - first);
      const Number* from[SIZE];
      for (long k = 0; k < SIZE; k++) from[k] = keys + (first + std::min(k, left_over - 1)) * place_stride;
      if (first + SIZE < visible)
        for (long k = 0; k < SIZE; k++)
          for (long i = 0; i < size; i += LINE) __builtin_prefetch(from[k] + SIZE * place_stride + i);
      for (long row = 0; row < count; row++) {
        const Number* query = queries + row * size;
        Lanes sums[SIZE] = {};
        for (long i = 0; i < whole; i += SIZE) {
          const Lanes part = *(const Lanes*)(query + i);
          for (long k = 0; k < SIZE; k++) sums[k] += part * *(const Lanes*)(from[k] + i);
        }
        for (long left = SIZE / 2; left > 0; left /= 2)
          for (long k = 0; k < left; k++)
            sums[k] = every_other<0>(sums[2 * k], sums[2 * k + 1]) + every_other<1>(sums[2 * k], sums[2 * k + 1]);
        Number totals[SIZE];
        std::memcpy(totals, sums, sizeof totals);
        for (long k = 0; k < left_over; k++) {
          for (long i = whole; i < size; i++) totals[k] += query[i] * from[k][i];
          scores[row * visible + first + k] = totals[k];
        }
      }
    }
  }
};

template <typename Number>
struct Buffers {
  std::vector<Number> qkv, attended, gate_up;
};

// Attention of some heads on one of a text's key heads: `unit` counts heads of all texts.
template <typename Number>
void attend(const Shape& shape, const Pass<Number>& pass, long offset, long unit, long heads, Buffers<Number>& shared,
            std::vector<Number>& queries, std::vector<Number>& scores) {
  const long size = shape.head_size, count = pass.num_new, group = shape.heads / shape.key_heads;
  const long fused = (shape.heads + 2 * shape.key_heads) * size, own = shape.heads * size;
  const long text = unit / shape.heads, head = unit % shape.heads;
  const long from = offset + text * pass.row_stride + head / group * size;
  const Number scale = Number(1 / std::sqrt(double(size)));
  queries.resize(heads * count * size), scores.resize(heads * count * pass.visible);
  for (long row = 0; row < heads * count; row++) {
    const long place = row % count;
    const Number* query = shared.qkv.data() + (text * count + place) * fused + (head + row / count) * size;
    rotate(query, pass.rotary + (pass.position + place) * 2 * size, size, scale, queries.data() + row * size);
  }
  Scores<Number>::make(queries.data(), heads * count, pass.keys + from, pass.place_stride, pass.visible, size, scores.data());
  Number* out = shared.attended.data() + text * count * own + head * size;
  for (long row = 0; row < heads * count; row++) {
    const long place = row % count;
    softmax(scores.data() + row * pass.visible, pass.visible - count + 1 + place, pass.visible);
    std::fill_n(out + place * own + row / count * size, size, Number(0));
  }
  for (long first = 0; first < pass.visible; first += DEPTH)
    for (long one = 0; one < heads; one++)
      add(count, scores.data() + one * count * pass.visible + first, pass.visible,
          pass.values + from + first * pass.place_stride, pass.place_stride, std::min(DEPTH, pass.visible - first),
          out + one * size, own, size);
}

// One thread's part of all layers.
template <typename Number>
void run(const Shape& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass, Buffers<Number>& shared,
         long thread, long threads) {
  static thread_local std::vector<Number> normed, scores, queries;
  const long rows = pass.batch * pass.num_new, size = shape.head_size, group = shape.heads / shape.key_heads;
  const long fused = (shape.heads + 2 * shape.key_heads) * size, own = shape.heads * size, kept = shape.key_heads * size;
  const Number floor = Number(shape.floor);
  normed.resize(rows * shape.width);
  for (long index = 0; index < count; index++) {
    const Layer<Number>& layer = layers[index];
    const long offset = index * pass.layer_stride, feed = layer.down.depth;
    norm(pass.hidden, layer.attention_norm, rows, shape.width, floor, normed.data());
    multiply(layer.qkv, normed.data(), shape.width, rows, (const Number*)nullptr, shared.qkv.data(),
             Columns(fused, thread, threads));
#pragma omp barrier
    for (long unit = thread; unit < rows * shape.key_heads; unit += threads) {
      const long row = unit / shape.key_heads, head = unit % shape.key_heads, place = row % pass.num_new;
      const long to = offset + row / pass.num_new * pass.row_stride + place * pass.place_stride + head * size;
      const Number* from = shared.qkv.data() + row * fused + own + head * size;
      rotate(from, pass.rotary + (pass.position + place) * 2 * size, size, Number(1), pass.new_keys + to);
      std::copy_n(from + kept, size, pass.new_values + to);
    }
#pragma omp barrier
    const long units = pass.batch * shape.heads, last = units * (thread + 1) / threads;
    for (long unit = units * thread / threads, next; unit < last; unit = next) {
      next = std::min(last, (unit / group + 1) * group);  // heads that share their keys, and the same text's
      attend(shape, pass, offset, unit, next - unit, shared, queries, scores);
    }
#pragma omp barrier
    multiply(layer.out, shared.attended.data(), own, rows, pass.hidden, pass.hidden, Columns(shape.width, thread, threads));
#pragma omp barrier
    norm(pass.hidden, layer.feed_norm, rows, shape.width, floor, normed.data());
    const Columns gates(feed, thread, threads);
    Columns ups = gates;
    ups.first += feed, ups.last += feed;
    Number* gate_up = shared.gate_up.data();
    multiply(layer.gate_up, normed.data(), shape.width, rows, (const Number*)nullptr, gate_up, gates);
    multiply(layer.gate_up, normed.data(), shape.width, rows, (const Number*)nullptr, gate_up, ups);
    for (long row = 0; row < rows; row++)
      activate(gate_up + row * 2 * feed + gates.first, gate_up + row * 2 * feed + ups.first, gates.last - gates.first,
               shape.activation);
#pragma omp barrier
    multiply(layer.down, gate_up, 2 * feed, rows, pass.hidden, pass.hidden, Columns(shape.width, thread, threads));
#pragma omp barrier
  }
}

template <typename Number>
void run_by_all(const Shape& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass) {
  static thread_local Buffers<Number> shared;
  const long rows = pass.batch * pass.num_new;
  shared.qkv.resize(rows * layers->qkv.width), shared.attended.resize(rows * layers->out.depth);
  shared.gate_up.resize(rows * layers->gate_up.width);
  Buffers<Number>& mine = shared;  // the calling thread's
  const long threads = threads_for(layers->gate_up.depth * layers->gate_up.width);
#ifdef _OPENMP
#pragma omp parallel num_threads(threads) if (threads > 1)
  run(shape, layers, count, pass, mine, omp_get_thread_num(), omp_get_num_threads());
#else
  run(shape, layers, count, pass, mine, 0, 1);
#endif
}

}  // namespace

extern "C" {
void run_float32(const Shape* shape, const Layer<float>* layers, long count, const Pass<float>* pass) {
  run_by_all(*shape, layers, count, *pass);
}
void run_float64(const Shape* shape, const Layer<double>* layers, long count, const Pass<double>* pass) {
  run_by_all(*shape, layers, count, *pass);
}
}
