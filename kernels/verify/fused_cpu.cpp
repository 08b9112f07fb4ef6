// What `fused_cpu.py` calls: verdicts over logits of any item, for one row or a batch.
#include <algorithm>

#include "verdicts.h"

using namespace verdicts;

// `item`: float32, float64, float16, bfloat16 by 0 to 3. Threads share the entries of a batch, or each row's tiles of a single entry.
//
// Return whether a last token was drawn for every entry; else one is V.
extern "C" int verify(const Round* round, int item, int threads) {
  if (item == 0) verify_batch<float>(*round, threads);
  if (item == 1) verify_batch<double>(*round, threads);
  if (item == 2) verify_batch<Float16>(*round, threads);
  if (item == 3) verify_batch<BFloat16>(*round, threads);
  return std::find(round->next_token, round->next_token + round->batch, round->vocab_size) == round->next_token + round->batch;
}

// The verdict at temperature 0; `item` and `threads` as above.
extern "C" void compare(const Compared* round, int item, int threads) {
  if (item == 0) compare_batch<float>(*round, threads);
  if (item == 1) compare_batch<double>(*round, threads);
  if (item == 2) compare_batch<Float16>(*round, threads);
  if (item == 3) compare_batch<BFloat16>(*round, threads);
}
