// Products of rows with a weight, by all threads, and how long these take to meet: what matrix.py calls.

#include <chrono>

#include "matrix.h"

extern "C" {
void multiply_float32(const Product<float>* product, const float* rows, long count, const float* onto, float* out, int threads) {
  multiply_by_all(*product, rows, count, onto, out, threads);
}
void multiply_float64(const Product<double>* product, const double* rows, long count, const double* onto, double* out, int threads) {
  multiply_by_all(*product, rows, count, onto, out, threads);
}
// Seconds that the threads of a team take to meet at a gate, as they do between the steps of a pass; 0 where one is the whole team.
double meeting(long times, int threads) {
  using Clock = std::chrono::steady_clock;
  Gate gate;
  std::chrono::duration<double> taken{};
  by_team(threads, [&](long thread, long all) {
    gate.wait(all);
    const auto start = Clock::now();
    for (long i = 0; i < times; i++) gate.wait(all);
    if (thread == 0 && all > 1) taken = Clock::now() - start;
  });
  return taken.count() / times;
}
}
