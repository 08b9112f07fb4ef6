// What `decoder.py` calls: embeddings, layers, the head behind them; drafts, which are passes and draws in turns; a pass and its verdict.

#include "../verify/verdicts.h"
#include "decoder.h"

namespace {

// Mirrored by `_Ends` of decoder.py: what stands before and behind the layers.
template <typename Number>
struct Ends {
  const Number* embedding;  // of tokens: `token_stride` apart, their numbers `number_stride`
  long token_stride, number_stride;
  double scale;             // of embeddings
  const Number* positions;  // or null; [places, width], added to the embeddings
  long places;              // behind the last of which all have its row
  Norm<Number> first_norm;  // of their sum, and
  Norm<Number> norm;        // of what goes to the head: without a gain there is none
  Product<Number> head;
};

// Mirrored by `_Drafting` of decoder.py: one row's drafts. The text's last `num_fed` tokens are read first. The vocabulary that is
// drafted has `size` tokens: the head's columns, or those that `columns` and `embedded` say.
template <typename Number>
struct Drafting {
  long num_fed, count, size;
  const std::int64_t* fed;
  const std::int64_t* columns;   // or null; [size], of the head, below 0 for a token that is never drafted
  const std::int64_t* embedded;  // [size], what is read behind a draft
  const double* uniforms;  // [count]; null: the likeliest tokens
  double temperature;
  long top_k;
  double top_p;
  long threads;
  std::int64_t* tokens;
  Number* logits;       // [count, size]
  double* log_sum_exp;  // of logits over the temperature, among the tokens that the filters keep
};

// hidden = the embeddings of `count` tokens, the first of which stands at `position`, or which stand at `positions`.
template <typename Number>
void embed(const Ends<Number>& ends, const std::int64_t* tokens, long count, long position, const std::int64_t* positions,
           long width, Number* hidden) {
  const Number scale = Number(ends.scale);
  for (long row = 0; row < count; row++) {
    Number* to = hidden + row * width;
    const Number* from = ends.embedding + tokens[row] * ends.token_stride;
    for (long i = 0; i < width; i++) to[i] = from[i * ends.number_stride] * scale;
    if (ends.positions) {
      const long own = positions ? positions[row] : position + row;
      const Number* place = ends.positions + std::min(own, ends.places - 1) * width;
      for (long i = 0; i < width; i++) to[i] += place[i];
    }
  }
  if (ends.first_norm.gain) apply(ends.first_norm, hidden, count, width, hidden);
}

// The same for rows of `num_new` tokens each.
template <typename Number>
void embed_rows(const Ends<Number>& ends, const std::int64_t* tokens, long batch, long num_new, long position,
                const std::int64_t* positions, long width, Number* hidden) {
  for (long row = 0; row < batch; row++)
    embed(ends, tokens + row * num_new, num_new, position, positions ? positions + row * num_new : nullptr, width,
          hidden + row * num_new * width);
}

// logits = the head's products with `count` rows.
template <typename Number>
void project(const Ends<Number>& ends, const Number* hidden, long count, long width, Number* logits, long threads) {
  static thread_local std::vector<Number> normed;
  const Number* nothing = nullptr;
  if (ends.norm.gain) {
    normed.resize(count * width);
    apply(ends.norm, hidden, count, width, normed.data());
    hidden = normed.data();
  }
  multiply_by_all(ends.head, hidden, count, nothing, logits, threads);
  release(normed);
}

// A whole pass: what is handed to the head, in `pass.hidden`, and the logits of all its tokens.
template <typename Number>
void pass_by_all(const Shape<Number>& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass,
                 const Ends<Number>& ends, const std::int64_t* tokens, Number* logits, long threads) {
  embed_rows(ends, tokens, pass.batch, pass.num_new, pass.position, pass.starts, shape.width, pass.hidden);
  run_by_all(shape, layers, count, pass, threads);
  project(ends, pass.hidden, pass.batch * pass.num_new, shape.width, logits, threads);
}

// A pass over every row's last token and its drafts, and the verdict on these by their logits: at temperature 0 `compared`, else `round`.
template <typename Number>
void verify_by_all(const Shape<Number>& shape, const Layer<Number>* layers, long count, const Pass<Number>& pass,
                   const Ends<Number>& ends, const std::int64_t* tokens, Number* logits, const verdicts::Round* round,
                   const verdicts::Compared* compared, int threads) {
  pass_by_all(shape, layers, count, pass, ends, tokens, logits, threads);
  if (round)
    verdicts::verify_batch<Number>(*round, threads);
  else
    verdicts::compare_batch<Number>(*compared, threads);
}

// The token that a uniform number draws by the inverse of the cumulative law, and the law's log-sum-exp: `size` and NaN where nothing
// can be drawn.
template <typename Number>
long drawn(const Drafting<Number>& drafting, const Number* logits, long size, double uniform, double* log_sum_exp) {
  const laws::Model law = {logits, 0, 0, drafting.temperature, drafting.top_k, drafting.top_p};
  const laws::Row<Number> row = laws::evaluated<Number>(law, 0, 0, size);
  const long token = laws::Weights<Number>{row}.draw(uniform);
  *log_sum_exp = token < size ? row.top + std::log(row.sum) : std::numeric_limits<double>::quiet_NaN();
  return token;
}

// Draft: each pass reads what the one before drew, and its head sees the last token alone.
template <typename Number>
void draft_by_all(const Shape<Number>& shape, const Layer<Number>* layers, long count, Pass<Number> pass,
                  const Ends<Number>& ends, const Drafting<Number>& drafting) {
  static thread_local std::vector<Number> rows, own;
  const long width = shape.width, size = drafting.size;
  own.resize(drafting.columns ? ends.head.width : 0);
  laws::row_threads = drafting.threads;
  std::int64_t next = 0;
  rows.resize(drafting.num_fed * width);
  pass.hidden = rows.data();
  for (long step = 0; step < drafting.count; step++) {
    pass.num_new = step ? 1 : drafting.num_fed;
    pass.text.places = pass.position + pass.num_new;
    embed(ends, step ? &next : drafting.fed, pass.num_new, pass.position, nullptr, width, pass.hidden);
    run_by_all(shape, layers, count, pass, drafting.threads);
    Number* logits = drafting.logits + step * size;
    project(ends, pass.hidden + (pass.num_new - 1) * width, 1, width, drafting.columns ? own.data() : logits,
            drafting.threads);
    for (long token = 0; drafting.columns && token < size; token++) {
      const std::int64_t column = drafting.columns[token];
      logits[token] = column < 0 ? -std::numeric_limits<Number>::infinity() : own[column];
    }
    drafting.tokens[step] = drafting.uniforms ? drawn(drafting, logits, size, drafting.uniforms[step], drafting.log_sum_exp + step)
                                              : laws::likeliest(logits, size);
    const std::int64_t token = drafting.tokens[step];
    const bool was_drawn = token < size && (!drafting.columns || drafting.columns[token] >= 0);
    next = !was_drawn ? drafting.fed[0] : drafting.columns ? drafting.embedded[token] : token;
    pass.position += pass.num_new;
    pass.new_keys += pass.num_new * pass.text.place_stride;
    pass.new_values += pass.num_new * pass.text.place_stride;
  }
}

}  // namespace

extern "C" {
void run_float32(const Shape<float>* shape, const Layer<float>* layers, long count, const Pass<float>* pass, int threads) {
  run_by_all(*shape, layers, count, *pass, threads);
}
void run_float64(const Shape<double>* shape, const Layer<double>* layers, long count, const Pass<double>* pass, int threads) {
  run_by_all(*shape, layers, count, *pass, threads);
}
void embed_float32(const Ends<float>* ends, const std::int64_t* tokens, long batch, long num_new, long position,
                   const std::int64_t* positions, long width, float* hidden) {
  embed_rows(*ends, tokens, batch, num_new, position, positions, width, hidden);
}
void embed_float64(const Ends<double>* ends, const std::int64_t* tokens, long batch, long num_new, long position,
                   const std::int64_t* positions, long width, double* hidden) {
  embed_rows(*ends, tokens, batch, num_new, position, positions, width, hidden);
}
void head_float32(const Ends<float>* ends, const float* hidden, long count, long width, float* logits, int threads) {
  project(*ends, hidden, count, width, logits, threads);
}
void head_float64(const Ends<double>* ends, const double* hidden, long count, long width, double* logits, int threads) {
  project(*ends, hidden, count, width, logits, threads);
}
void pass_float32(const Shape<float>* shape, const Layer<float>* layers, long count, const Pass<float>* pass,
                  const Ends<float>* ends, const std::int64_t* tokens, float* logits, int threads) {
  pass_by_all(*shape, layers, count, *pass, *ends, tokens, logits, threads);
}
void pass_float64(const Shape<double>* shape, const Layer<double>* layers, long count, const Pass<double>* pass,
                  const Ends<double>* ends, const std::int64_t* tokens, double* logits, int threads) {
  pass_by_all(*shape, layers, count, *pass, *ends, tokens, logits, threads);
}
void verify_float32(const Shape<float>* shape, const Layer<float>* layers, long count, const Pass<float>* pass,
                    const Ends<float>* ends, const std::int64_t* tokens, float* logits, const verdicts::Round* round,
                    const verdicts::Compared* compared, int threads) {
  verify_by_all(*shape, layers, count, *pass, *ends, tokens, logits, round, compared, threads);
}
void verify_float64(const Shape<double>* shape, const Layer<double>* layers, long count, const Pass<double>* pass,
                    const Ends<double>* ends, const std::int64_t* tokens, double* logits, const verdicts::Round* round,
                    const verdicts::Compared* compared, int threads) {
  verify_by_all(*shape, layers, count, *pass, *ends, tokens, logits, round, compared, threads);
}
void draft_float32(const Shape<float>* shape, const Layer<float>* layers, long count, const Pass<float>* pass,
                   const Ends<float>* ends, const Drafting<float>* drafting) {
  draft_by_all(*shape, layers, count, *pass, *ends, *drafting);
}
void draft_float64(const Shape<double>* shape, const Layer<double>* layers, long count, const Pass<double>* pass,
                   const Ends<double>* ends, const Drafting<double>* drafting) {
  draft_by_all(*shape, layers, count, *pass, *ends, *drafting);
}
}
