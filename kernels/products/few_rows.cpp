// Products of a few rows with a large weight, by all threads: what few_rows.py calls.

#include <vector>

#include "few_rows.h"

namespace {

template <typename Number>
void multiply_by_all(const Product<Number>& product, const Number* rows, long count, const Number* onto, Number* out) {
  static thread_local std::vector<Number> seconds;
  seconds.resize(count * product.width);
  Number* second = seconds.data();  // the calling thread's
  Gate gate;
  by_team(threads_for(product.depth * product.width), [&](long thread, long threads) {
    multiply(product, rows, product.depth, count, onto, out, second, thread, threads);
    gate.wait(threads);
    join(out, second, product.width, count, Columns(product.width, thread, threads));
  });
}

}  // namespace

extern "C" {
void multiply_float32(const Product<float>* product, const float* rows, long count, const float* onto, float* out) {
  multiply_by_all(*product, rows, count, onto, out);
}
void multiply_float64(const Product<double>* product, const double* rows, long count, const double* onto, double* out) {
  multiply_by_all(*product, rows, count, onto, out);
}
}
