// Products of a few rows with a large weight, by all threads: what few_rows.py calls.

#include "few_rows.h"

namespace {

template <typename Number>
void multiply_by_all(const Product<Number>& product, const Number* rows, long count, const Number* onto, Number* out) {
  const long threads = threads_for(product.depth * product.width);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (long thread = 0; thread < threads; thread++)
    multiply(product, rows, product.depth, count, onto, out, Columns(product.width, thread, threads));
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
