// Verdicts as loops, straight from logits: Algorithm 1 by README.md's Eqs. 8 to 13, row by row until the first rejection; and at
// temperature 0, where nothing is drawn, drafts beside the target's likeliest tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "laws.h"

namespace {
namespace verdicts {

using namespace laws;

// What is verified, and where the decisions go. Mirrored by `ROUND` of `fused_cpu.py`.
struct Round {
  Index batch, num_draft, vocab_size;
  const Index *tokens, *lengths;
  Model target, draft;
  const double* log_sum_exp;  // of the draft's rows; null: to be computed
  const double* uniforms;
  double lenience;  // what a draft's probability is multiplied by: 1 of the lossless rule
  Index looks_at_all;  // whether drafts behind the first rejection have probabilities, too
  Index *num_accepted, *next_token;
  void *target_probs, *draft_probs;
};

// The draft's law behind `position` drafts. Its row is not read where its log-sum-exp was handed over.
template <class Logit>
Row<Logit> draft_law(const Round& round, Index entry, Index position) {
  if (round.log_sum_exp == nullptr) return evaluated<Logit>(round.draft, entry, position, round.vocab_size);
  Row<Logit> row(round.draft, entry, position, round.vocab_size);
  const double log_sum_exp = round.log_sum_exp[entry * round.num_draft + position];
  row.top = typename Row<Logit>::Real(log_sum_exp);
  row.sum = std::exp(log_sum_exp - double(row.top));  // what rounding took: of a low temperature a log-sum-exp is large
  return row;
}

// Algorithm 1 for one entry of the batch; the drafted tokens' probabilities are NaN where nobody looked.
template <class Logit>
void verify_entry(const Round& round, Index entry) {
  using Real = typename Row<Logit>::Real;
  const Index first = entry * round.num_draft, length = round.lengths[entry];
  const double* uniforms = round.uniforms + first + entry;
  const double last_uniform = uniforms[round.num_draft];
  for (Index i = first; i < first + round.num_draft; ++i) {
    static_cast<Real*>(round.target_probs)[i] = static_cast<Real*>(round.draft_probs)[i] = std::numeric_limits<Real>::quiet_NaN();
  }
  Index position = 0;
  for (;; ++position) {
    const Row<Logit> target = evaluated<Logit>(round.target, entry, position, round.vocab_size);
    if (position == length) {
      round.next_token[entry] = Weights<Logit>{target}.draw(last_uniform);
      break;
    }
    const Index token = round.tokens[first + position];
    Row<Logit> draft;
    double draft_prob = 1;
    if (round.draft.logits != nullptr) {
      draft = draft_law<Logit>(round, entry, position);
      draft_prob = draft.prob(token);
    }
    const double target_prob = target.prob(token);
    static_cast<Real*>(round.target_probs)[first + position] = Real(target_prob);
    static_cast<Real*>(round.draft_probs)[first + position] = Real(draft_prob);
    if (target_prob > 0 && uniforms[position] * (round.lenience * draft_prob) <= target_prob) continue;
    const bool is_point = round.draft.logits == nullptr;
    round.next_token[entry] = Weights<Logit>{target, is_point ? nullptr : &draft, is_point ? token : -1}.draw(last_uniform);
    break;
  }
  round.num_accepted[entry] = position;
  for (Index place = position + 1; round.looks_at_all && place < length; ++place) {
    const Index token = round.tokens[first + place];
    static_cast<Real*>(round.target_probs)[first + place] =
        Real(evaluated<Logit>(round.target, entry, place, round.vocab_size).prob(token));
    static_cast<Real*>(round.draft_probs)[first + place] =
        round.draft.logits == nullptr ? Real(1) : Real(draft_law<Logit>(round, entry, place).prob(token));
  }
}

// How many threads share the entries of a batch: one where the logits that all look at are few, which a team costs more than.
inline int team_of(Index batch, Index num_draft, Index vocab_size, int threads) {
  return batch > 1 && batch * (num_draft + 1) * vocab_size >= SHARED_TILES * TILE ? threads : 1;
}

template <class Logit>
void verify_batch(const Round& round, int threads) {
  row_threads = round.batch == 1 ? threads : 1;
  if (round.batch == 1) {  // without a team around it: threads of a team within a team are made anew each time
    verify_entry<Logit>(round, 0);
    return;
  }
  const int team = team_of(round.batch, round.num_draft, round.vocab_size, threads);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(dynamic)
  for (Index entry = 0; entry < round.batch; ++entry) verify_entry<Logit>(round, entry);
}

// What is compared, and where it goes. Mirrored by `COMPARED` of `fused_cpu.py`.
struct Compared {
  Index batch, num_draft, vocab_size;
  const Index *tokens, *lengths;
  const void* logits;  // the target's
  Index entry_stride, row_stride;
  Index *num_accepted, *next_token;
  void* target_probs;  // 1 of a draft that is the target's likeliest token, else 0
};

template <class Logit>
void compare_entry(const Compared& round, Index entry) {
  using Real = typename Row<Logit>::Real;
  const Index* drafted = round.tokens + entry * round.num_draft;
  Real* probs = static_cast<Real*>(round.target_probs) + entry * round.num_draft;
  Index position = 0;
  bool stands = true;
  for (Index place = 0; place <= round.num_draft; ++place) {
    const Logit* row = static_cast<const Logit*>(round.logits) + entry * round.entry_stride + place * round.row_stride;
    const Index best = likeliest(row, round.vocab_size);
    if (place < round.num_draft) probs[place] = drafted[place] == best;
    if (!stands) continue;
    round.next_token[entry] = best;
    stands = place < round.lengths[entry] && drafted[place] == best;
    position += stands;
  }
  round.num_accepted[entry] = position;
}

template <class Logit>
void compare_batch(const Compared& round, int threads) {
  const int team = team_of(round.batch, round.num_draft, round.vocab_size, threads);
#pragma omp parallel for num_threads(team) if (team > 1) schedule(static)
  for (Index entry = 0; entry < round.batch; ++entry) compare_entry<Logit>(round, entry);
}

}  // namespace verdicts
}  // namespace
