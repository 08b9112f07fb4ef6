// Decoder layers, all of them in one call: norms, rotary positions or a bias by distance, attention on the text
// and on a source, feed-forward with a gate or without.
//
// Between its matrix products a layer makes a dozen small operations, each of which costs more to call than to compute. Threads
// share the columns of a product and the heads of attention, and wait for one another between. Whatever a row gets does not
// depend on the other rows, nor on the number of threads, to the bit: every sum has an order of its own. Values of places that a
// query does not see are added by weight 0, as torch's masked attention does, so that one that is infinite makes it NaN too; but of
// many queries each block reads no further than its last one sees.

#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "../numbers.h"
#include "../products/matrix.h"

namespace {

// Places before a window are left out so many at a time: sums of scores are made in lanes, by place, so that a token alone and the
// same one among others have the same bits only where both begin at a multiple of what any processor adds at once.
constexpr long WINDOW_STEP = 256;
constexpr long BLOCK = 42;  // queries at a time: their scores stay in the cache

enum Activation : long { SILU, GELU_TANH, GELU, RELU };

// Mirrored by `_Norm` of decoder.py. With a shift it subtracts the mean and divides by the deviation; without one it divides by
// the root mean square.
template <typename Number>
struct Norm {
  const Number* gain;
  const Number* shift;
  double epsilon;
};

// Mirrored by `_Layer` of decoder.py. `query` and `source_out` are there if the layer attends to a source; a norm without a gain
// is none. What attention and feed-forward give goes through the norm that stands `behind` each, and times `share`, to the sum. In
// a `parallel` layer feed-forward reads what attention reads, the sum before both.
template <typename Number>
struct Layer {
  Norm<Number> attention_norm, source_norm, feed_norm;
  Norm<Number> query_norm, key_norm;  // of each head's queries and keys, or where it `norms_all` of all heads' at once
  Norm<Number> attention_behind, feed_behind;
  Product<Number> qkv, out, query, source_out, up, down;
  double scale, share;  // of queries; of what is added to the sum
  long turns, norms_all, parallel;
};

// Mirrored by `_Shape` of decoder.py: what all layers share. `distances` is the number of biases of each head by how far a key is
// behind its query: -distances + ahead + 1 to `ahead` places; 0 where attention has none. Norms stand behind what they belong to,
// on the sum, or before it. Where a token `sees_all`, it looks at those behind it, too. The first `turned` numbers of a head turn.
// Queries, keys and values of a head lie side by side where they are `interleaved`, else those of all heads.
template <typename Number>
struct Shape {
  long width, heads, key_heads, head_size, turned, interleaved, activation, gated, norms_behind, attends_to_source, sees_all;
  long distances, ahead;
  const Number* biases;  // [heads, distances]; keys that are further off have the first one, or the last
};

// Keys and values of the first layer that runs: strides in numbers.
template <typename Number>
struct Memory {
  const Number* keys;
  const Number* values;
  long layer_stride, row_stride, head_stride, place_stride, places;
  const Number* mask;  // or null; [rows, places], added to scores
  long mask_stride;
};

// Mirrored by `_Pass` of decoder.py. A row's new tokens are at `position` of the text and on, and are stored at `new_keys`, those of
// the next row `new_row_stride` behind; where rows differ `starts`, by row `num_new` apart, has their positions, which are also
// their places behind `new_keys`. A token looks at `window` places of the text, its own the last; 0: at all of them.
template <typename Number>
struct Pass {
  long batch, num_new, position, window, new_row_stride;
  const std::int64_t* starts;  // or null
  Memory<Number> text, source;
  Number* new_keys;
  Number* new_values;
  const Number* rotary;  // or null; by position the cosines, then the sines, of which the first half has the minus sign
  Number* hidden;        // the rows that go in and come out
  long caches_only;      // the last layer ends with its keys and values: nobody reads what comes out
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
__attribute__((noinline)) Number sum_of(const Number* numbers, long size) {
  Number sum = 0;
#pragma omp simd reduction(+ : sum)
  for (long i = 0; i < size; i++) sum += numbers[i];
  return sum;
}

template <typename Number>
void apply(const Norm<Number>& norm, const Number* rows, long count, long width, Number* out) {
  for (long row = 0; row < count; row++, rows += width, out += width) {
    if (norm.shift) {
      const Number mean = sum_of(rows, width) / width;
      for (long i = 0; i < width; i++) out[i] = rows[i] - mean;
      const Number length = std::sqrt(sum_of_squares(out, width) / width + Number(norm.epsilon));
      for (long i = 0; i < width; i++) out[i] = out[i] / length * norm.gain[i] + norm.shift[i];
    } else {
      const Number length = std::sqrt(sum_of_squares(rows, width) / width + Number(norm.epsilon));
      for (long i = 0; i < width; i++) out[i] = rows[i] / length * norm.gain[i];
    }
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

// The error function of single precision: Abramowitz and Stegun, formula 7.1.26, whose error is below 1.5e-7.
inline float error_function(float x) {
  const float size = x < 0 ? -x : x, part = 1 / (1 + 0.3275911f * size);
  const float series = ((((1.061405429f * part - 1.453152027f) * part + 1.421413741f) * part - 0.284496736f) * part +
                        0.254829592f) * part;
  const float found = 1 - series * exponential(-size * size);
  return x < 0 ? -found : found;
}
inline double error_function(double x) { return std::erf(x); }

template <long activation, typename Number>
inline Number activated(Number x) {
  constexpr Number twice = Number(1.5957691216057308), cubic = Number(0.044715), root_of_half = Number(0.7071067811865476);
  if constexpr (activation == SILU) return x * logistic(x);
  if constexpr (activation == GELU_TANH) return x * logistic(twice * (x + cubic * x * x * x));  // 1/2 (1 + tanh(y)) = logistic(2 y)
  if constexpr (activation == GELU) return Number(0.5) * x * (1 + error_function(x * root_of_half));
  return x < 0 ? Number(0) : x;
}

// numbers = activation(numbers), times `up` unless that is null
template <long activation, typename Number>
void activate_as(Number* numbers, const Number* up, long size) {
  if (up)
    for (long i = 0; i < size; i++) numbers[i] = activated<activation>(numbers[i]) * up[i];
  else
    for (long i = 0; i < size; i++) numbers[i] = activated<activation>(numbers[i]);
}

template <typename Number>
void activate(Number* numbers, const Number* up, long size, long activation) {
  constexpr decltype(&activate_as<SILU, Number>) by_kind[] = {activate_as<SILU, Number>, activate_as<GELU_TANH, Number>,
                                                              activate_as<GELU, Number>, activate_as<RELU, Number>};
  by_kind[activation](numbers, up, size);
}

// A head's first `turned` numbers turn, the others stay.
template <typename Number>
inline void rotate(const Number* from, const Number* rotary, long turned, long size, Number scale, Number* out) {
  const long half = turned / 2;
  for (long i = 0; i < half; i++) {
    const Number first = from[i], second = from[i + half];
    out[i] = (first * rotary[i] + second * rotary[turned + i]) * scale;
    out[i + half] = (second * rotary[i + half] + first * rotary[turned + i + half]) * scale;
  }
  for (long i = turned; i < size; i++) out[i] = from[i] * scale;
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

  // Add neighbours among `left` vectors until there is one.
  template <long left>
  static void fold(Lanes* sums) {
    if constexpr (left > 1) {
#pragma GCC unroll 8
      for (long k = 0; k < left / 2; k++)
        sums[k] = every_other<0>(sums[2 * k], sums[2 * k + 1]) + every_other<1>(sums[2 * k], sums[2 * k + 1]);
      fold<left / 2>(sums);
    }
  }

  // The products of one query with SIZE keys, or with what is left of them: behind these the last one stands in.
  template <bool all>
  static Lanes of_query(const Number* query, const Number* keys, long stride, long left_over, long size) {
    Lanes sums[SIZE] = {};
    const auto key = [&](long k) { return keys + (all ? k : std::min(k, left_over - 1)) * stride; };
    long i = 0;
    for (; i + SIZE <= size; i += SIZE) {
      const Lanes part = *(const Lanes*)(query + i);
#pragma GCC unroll 16
      for (long k = 0; k < SIZE; k++) sums[k] += part * *(const Lanes*)(key(k) + i);
    }
    fold<SIZE>(sums);
    for (; i < size; i++)
      for (long k = 0; k < SIZE; k++) sums[0][k] += query[i] * key(k)[i];
    return sums[0];
  }

  // The products of `count` queries, scores a `visible` apart: a few keys at a time, so that they come from memory once.
  static void make(const Number* queries, long count, const Number* keys, long stride, long visible, long size, Number* scores) {
    for (long first = 0; first < visible; first += SIZE, keys += SIZE * stride) {
      const long left_over = std::min(SIZE, visible - first);
      if (first + SIZE < visible)
        for (long k = 0; k < SIZE; k++)
          for (long i = 0; i < size; i += LINE) __builtin_prefetch(keys + (SIZE + k) * stride + i);
      for (long row = 0; row < count; row++) {
        Number* to = scores + row * visible + first;
        if (left_over == SIZE) {
          *(Lanes*)to = of_query<true>(queries + row * size, keys, stride, SIZE, size);
        } else {
          const Lanes found = of_query<false>(queries + row * size, keys, stride, left_over, size);
          std::memcpy(to, &found, left_over * sizeof(Number));
        }
      }
    }
  }
};

template <typename Number>
struct Buffers {
  std::vector<Number> queries, attended, fed, seconds;  // all threads'; the last one's is the second half of every product
};

// Add the biases by distance to the scores of a query that stands at the place `own` and sees so many.
template <typename Number>
void add_biases(const Shape<Number>& shape, long head, long own, long seen, Number* scores) {
  const Number* biases = shape.biases + head * shape.distances;
  const long first = own + shape.ahead - shape.distances + 1;  // the place of the first one
  const long near = std::clamp(first, 0L, seen), far = std::clamp(first + shape.distances, near, seen);
  for (long i = 0; i < near; i++) scores[i] += biases[0];
  for (long i = near; i < far; i++) scores[i] += biases[i - first];
  for (long i = far; i < seen; i++) scores[i] += biases[shape.distances - 1];
}

// Attention of some heads on one of a row's key heads: `unit` counts heads of all rows. It is that of `count` of the row's queries,
// from `first_query` on, which lie `query_stride` apart, and turn by `rotary` unless that is null.
template <bool on_text, typename Number>
void attend(const Shape<Number>& shape, const Pass<Number>& pass, const Number* rotary, long layer, Number scale, long unit,
            long heads, long first_query, long count, Buffers<Number>& shared, long query_stride, std::vector<Number>& queries,
            std::vector<Number>& scores) {
  const Memory<Number>& memory = on_text ? pass.text : pass.source;
  const long size = shape.head_size, group = shape.heads / shape.key_heads, own = shape.heads * size;
  const long row = unit / shape.heads, head = unit % shape.heads, first_row = row * pass.num_new + first_query;
  const long start = pass.starts ? pass.starts[row * pass.num_new] : pass.position, position = start + first_query;
  const long later = on_text && !shape.sees_all ? pass.num_new - first_query - count : 0;  // places that none of these sees
  const long all_places = (on_text && pass.starts ? start + pass.num_new : memory.places) - later;
  const long window = on_text ? pass.window : 0;
  const long before = window ? std::max(0L, all_places - count + 1 - window) / WINDOW_STEP * WINDOW_STEP : 0;
  const long places = all_places - before;
  const long from = layer * memory.layer_stride + row * memory.row_stride + head / group * memory.head_stride +
                    before * memory.place_stride;
  // A head that fills no whole vectors is read on into what lies behind it: queries have zeros there, and sums of values are cut.
  // Behind keys lie values; behind values lie those of the next place, so the last place's are read by themselves.
  const long over = (Vector<Number>::SIZE - size % Vector<Number>::SIZE) % Vector<Number>::SIZE;
  const bool reads_on = over > 0 && over <= size;
  const long length = reads_on ? size + over : size;
  queries.assign(heads * count * length, Number(0)), scores.resize(heads * count * places);
  for (long i = 0; i < heads * count; i++) {
    const long place = i % count;
    const long step = on_text && shape.interleaved ? 3 * size : size;
    const Number* query = shared.queries.data() + (first_row + place) * query_stride + (head + i / count) * step;
    Number* to = queries.data() + i * length;
    if (on_text && rotary)
      rotate(query, rotary + (position + place) * 2 * shape.turned, shape.turned, size, scale, to);
    else
      for (long k = 0; k < size; k++) to[k] = query[k] * scale;
  }
  Scores<Number>::make(queries.data(), heads * count, memory.keys + from, memory.place_stride, places, length, scores.data());
  Number* out = shared.attended.data() + first_row * own + head * size;
  for (long i = 0; i < heads * count; i++) {
    const long place = i % count, seen = on_text && !shape.sees_all ? places - count + 1 + place : places;
    Number* mine = scores.data() + i * places;
    if (on_text && shape.distances)
      add_biases(shape, head + i / count, position + place - before, seen, mine);
    if (window) std::fill_n(mine, std::max(0L, seen - window), -std::numeric_limits<Number>::infinity());
    if (memory.mask)
      for (long k = 0; k < places; k++) mine[k] += memory.mask[row * memory.mask_stride + before + k];
    softmax(mine, seen, places);
    std::fill_n(out + place * own + i / count * size, size, Number(0));
  }
  Number* sums = queries.data();  // which nobody needs any more
  const long whole_places = reads_on ? places - 1 : places;
  if (reads_on) std::fill_n(sums, heads * count * length, Number(0));
  for (long first = 0; first < whole_places; first += DEPTH)
    for (long one = 0; one < heads; one++)
      add(count, scores.data() + one * count * places + first, places, memory.values + from + first * memory.place_stride,
          memory.place_stride, std::min(DEPTH, whole_places - first), reads_on ? sums + one * count * length : out + one * size,
          reads_on ? length : own, length);
  if (!reads_on) return;
  for (long i = 0; i < heads * count; i++) std::copy_n(sums + i * length, size, out + i % count * own + i / count * size);
  for (long one = 0, last = places - 1; one < heads; one++)
    add(count, scores.data() + one * count * places + last, places, memory.values + from + last * memory.place_stride,
        memory.place_stride, 1L, out + one * size, own, size);
}

// One thread's part of all layers.
template <typename Number>
void run(const Shape<Number>& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass,
         Buffers<Number>& shared, Gate& gate, long thread, long threads) {
  static thread_local std::vector<Number> normed, aside, scores, queries;
  const long rows = pass.batch * pass.num_new, size = shape.head_size, width = shape.width;
  const long fused = (shape.heads + 2 * shape.key_heads) * size, own = shape.heads * size, kept = shape.key_heads * size;
  const long units = pass.batch * shape.heads, last_unit = units * (thread + 1) / threads;
  const Columns columns(width, thread, threads);
  const Number* nothing = nullptr;
  Number* second = shared.seconds.data();
  const auto wait = [&] { gate.wait(threads); };
  // A product, of few rows first in halves, which each thread joins where it needs them.
  const auto halves_of = [&](const Product<Number>& product, const Number* from, long stride, const Number* onto, Number* out) {
    multiply(product, from, stride, rows, onto, out, second, thread, threads);
    wait();
  };
  const auto make = [&](const Product<Number>& product, const Number* from, long stride, const Number* onto, Number* out) {
    const Columns mine(product.width, thread, threads);
    if (are_many(rows, product)) {
      multiply_many(product, from, stride, rows, onto, out, mine);
    } else {
      halves_of(product, from, stride, onto, out);
      join(out, second, product.width, rows, mine);
    }
    wait();
  };
  Number *between = shared.queries.data(), *fed = shared.fed.data();
  normed.resize(rows * width);
  // Numbers through a norm, or as they are where there is none.
  const auto through = [&](const Norm<Number>& norm, const Number* from, Number* to) {
    if (norm.gain)
      apply(norm, from, rows, width, to);
    else
      std::copy_n(from, rows * width, to);
  };
  // What goes into attention or feed-forward: `own_norm` of the sum so far, or where norms stand behind it, that of what came last.
  const auto enter = [&](const Norm<Number>& own_norm, const Norm<Number>* behind) {
    through(!shape.norms_behind ? own_norm : behind ? *behind : Norm<Number>(), pass.hidden, normed.data());
  };
  const Number* sum = shape.norms_behind ? normed.data() : pass.hidden;  // what attention and feed-forward are added to
  // Add what attention or feed-forward gives to the sum.
  const auto add_to_sum = [&](const Product<Number>& product, const Number* from, long stride, const Norm<Number>& behind,
                              Number share) {
    if (!behind.gain && share == 1) return make(product, from, stride, sum, pass.hidden);
    make(product, from, stride, nothing, between);
    through(behind, between, normed.data());
    for (long row = 0; row < rows; row++)
      for (long i = row * width + columns.first; i < row * width + columns.last; i++) pass.hidden[i] += share * normed[i];
    wait();
  };
  // Heads that share their keys, and the same row's, at once. Threads share heads, or where there are many queries, blocks of these,
  // of which later ones see more; heads by themselves where there are few blocks for so many threads.
  const auto attend_to = [&](auto on_text, const Number* rotary, long layer, Number scale, long group, long stride) {
    const auto attend_block = [&](long unit, long heads, long first) {
      attend<decltype(on_text)::value>(shape, pass, rotary, layer, scale, unit, heads, first, std::min(BLOCK, pass.num_new - first),
                                       shared, stride, queries, scores);
    };
    if (pass.num_new > BLOCK) {
      const long blocks = (pass.num_new + BLOCK - 1) / BLOCK, heads = units / group * blocks < 4 * threads ? 1 : group;
      for (long unit = 0; unit < units; unit += heads)
        for (long block = 0; block < blocks; block++)
          if ((unit / heads + block) % threads == thread) attend_block(unit, heads, block * BLOCK);
      return;
    }
    for (long unit = units * thread / threads, next; unit < last_unit; unit = next) {
      next = std::min(last_unit, (unit / group + 1) * group);
      attend_block(unit, next - unit, 0);
    }
  };
  for (long index = 0; index < count; index++) {
    const Layer<Number>& layer = layers[index];
    const Number scale = Number(layer.scale), share = Number(layer.share);
    const Number* rotary = layer.turns ? pass.rotary : nothing;
    enter(layer.attention_norm, index ? &layers[index - 1].feed_norm : nullptr);
    if (layer.parallel) {
      aside.resize(rows * width);
      through(layer.feed_norm, pass.hidden, aside.data());
    }
    make(layer.qkv, normed.data(), width, nothing, between);
    if (layer.query_norm.gain) {
      for (long row = thread; row < rows; row += threads) {
        Number *queries_of = between + row * fused, *keys_of = queries_of + own;
        apply(layer.query_norm, queries_of, layer.norms_all ? 1 : shape.heads, layer.norms_all ? own : size, queries_of);
        apply(layer.key_norm, keys_of, layer.norms_all ? 1 : shape.key_heads, layer.norms_all ? kept : size, keys_of);
      }
      wait();
    }
    for (long unit = thread; unit < rows * shape.key_heads; unit += threads) {
      const long one = unit / shape.key_heads, head = unit % shape.key_heads, row = one / pass.num_new;
      const long place = one % pass.num_new, start = pass.starts ? pass.starts[row * pass.num_new] : 0;
      const long position = pass.starts ? start : pass.position;
      const long to = index * pass.text.layer_stride + row * pass.new_row_stride + (start + place) * pass.text.place_stride +
                      head * pass.text.head_stride;
      const Number* from = between + one * fused + (shape.interleaved ? (3 * head + 1) * size : own + head * size);
      if (rotary)
        rotate(from, rotary + (position + place) * 2 * shape.turned, shape.turned, size, Number(1), pass.new_keys + to);
      else
        std::copy_n(from, size, pass.new_keys + to);
      std::copy_n(from + (shape.interleaved ? size : kept), size, pass.new_values + to);
    }
    wait();
    if (pass.caches_only && index == count - 1) break;
    attend_to(std::true_type(), rotary, index, scale, shape.heads / shape.key_heads, fused);
    wait();
    add_to_sum(layer.out, shared.attended.data(), own, layer.attention_behind, share);
    if (shape.attends_to_source) {
      enter(layer.source_norm, &layer.attention_norm);
      make(layer.query, normed.data(), width, nothing, between);
      attend_to(std::false_type(), nothing, index, scale, 1, own);
      wait();
      make(layer.source_out, shared.attended.data(), own, sum, pass.hidden);
    }
    if (!layer.parallel) enter(layer.feed_norm, shape.attends_to_source ? &layer.source_norm : &layer.attention_norm);
    const long feed = layer.down.depth;
    const Columns gates(feed, thread, threads);
    const Number* feeding = layer.parallel ? aside.data() : normed.data();
    if (are_many(rows, layer.up)) {
      multiply_many(layer.up, feeding, width, rows, nothing, fed, gates);
      if (shape.gated) multiply_many(layer.up, feeding, width, rows, nothing, fed, gates.behind(feed));
    } else {
      halves_of(layer.up, feeding, width, nothing, fed);
      join(fed, second, layer.up.width, rows, gates);
      if (shape.gated) join(fed + feed, second + feed, layer.up.width, rows, gates);
    }
    for (long row = 0; row < rows; row++) {
      Number* numbers = fed + row * layer.up.width + gates.first;
      activate(numbers, shape.gated ? numbers + feed : nothing, gates.last - gates.first, shape.activation);
    }
    wait();
    add_to_sum(layer.down, fed, layer.up.width, layer.feed_behind, share);
  }
  if (shape.norms_behind && !pass.caches_only) {
    through(layers[count - 1].feed_norm, pass.hidden, normed.data());
    wait();
    for (long row = 0; row < rows; row++)
      std::copy(normed.data() + row * width + columns.first, normed.data() + row * width + columns.last,
                pass.hidden + row * width + columns.first);
  }
  for (std::vector<Number>* one : {&normed, &aside, &scores, &queries}) release(*one);
}

template <typename Number>
void run_by_all(const Shape<Number>& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass, long most_threads) {
  static thread_local Buffers<Number> shared;
  const long rows = pass.batch * pass.num_new;
  shared.queries.resize(rows * std::max(layers->qkv.width, shape.width)), shared.attended.resize(rows * layers->out.depth);
  shared.fed.resize(rows * layers->up.width);
  bool in_halves = false;
  for (const Layer<Number>* layer = layers; layer < layers + count; layer++)
    for (const auto* one : {&layer->qkv, &layer->out, &layer->query, &layer->source_out, &layer->up, &layer->down})
      in_halves |= !are_many(rows, *one);
  if (in_halves) shared.seconds.resize(rows * std::max({layers->qkv.width, layers->up.width, shape.width}));
  Buffers<Number>& mine = shared;  // the calling thread's
  Gate gate;
  by_team(threads_for(layers->up.depth * layers->up.width * (1 + rows / MOST_ROWS), most_threads),
          [&](long thread, long threads) { run(shape, layers, count, pass, mine, gate, thread, threads); });
  for (std::vector<Number>* one : {&mine.queries, &mine.attended, &mine.fed, &mine.seconds}) release(*one);
}

}  // namespace

