// Products of rows with a weight, by all threads: what matrix.py calls.

#include "matrix.h"

extern "C" {
void multiply_float32(const Product<float>* product, const float* rows, long count, const float* onto, float* out, int threads) {
  multiply_by_all(*product, rows, count, onto, out, threads);
}
void multiply_float64(const Product<double>* product, const double* rows, long count, const double* onto, double* out, int threads) {
  multiply_by_all(*product, rows, count, onto, out, threads);
}
}
