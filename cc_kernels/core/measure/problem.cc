#include "cc_kernels/core/measure/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "Eigen/Core"
#include "cc_kernels/core/measure/float64_reference.h"

namespace tf_interop {
namespace {

// Elements of the tensors that are read, in the order of ConvolutionBuffers.
std::vector<int64_t> InputElements(const Convolution& c) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      if (c.has_bias) return {c.image_elements(), c.filter_elements(), c.output_channels};
      return {c.image_elements(), c.filter_elements()};
    case ConvolutionKind::kBackwardInput:
      return {c.filter_elements(), c.output_elements()};
    case ConvolutionKind::kBackwardFilter:
      return {c.image_elements(), c.output_elements()};
  }
  return {};
}

template <typename T>
void FillNormal(std::mt19937_64* random, Bytes* tensor) {
  std::normal_distribution<float> normal;
  T* const elements = reinterpret_cast<T*>(tensor->data());
  for (size_t i = 0; i < tensor->size() / sizeof(T); ++i) {
    elements[i] = static_cast<T>(normal(*random));
  }
}

void FillNormal(DataType dtype, std::mt19937_64* random, Bytes* tensor) {
  switch (dtype) {
    case DataType::kFloat:
      return FillNormal<float>(random, tensor);
    case DataType::kHalf:
      return FillNormal<Eigen::half>(random, tensor);
    case DataType::kBFloat16:
      return FillNormal<Eigen::bfloat16>(random, tensor);
    case DataType::kDouble:
      return FillNormal<double>(random, tensor);
  }
}

template <typename T>
std::vector<double> Decode(const Bytes& tensor) {
  const T* const elements = reinterpret_cast<const T*>(tensor.data());
  std::vector<double> values(tensor.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(elements[i]);
  return values;
}

std::vector<double> Decode(DataType dtype, const Bytes& tensor) {
  switch (dtype) {
    case DataType::kFloat:
      return Decode<float>(tensor);
    case DataType::kHalf:
      return Decode<Eigen::half>(tensor);
    case DataType::kBFloat16:
      return Decode<Eigen::bfloat16>(tensor);
    case DataType::kDouble:
      return Decode<double>(tensor);
  }
  return {};
}

double RelativeError(const std::vector<double>& expected, const std::vector<double>& got) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::fabs(got[i] - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  if (difference == 0) return 0;
  return difference / largest;
}

std::vector<double> ComputeExpected(const MeasuredProblem& problem) {
  std::vector<std::vector<double>> inputs;
  for (const Bytes& input : problem.inputs) {
    inputs.push_back(Decode(problem.convolution.dtype, input));
  }
  return ComputeInFloat64(problem.convolution, inputs);
}

}  // namespace

MeasuredProblem MakeProblem(const Convolution& c, std::mt19937_64* random) {
  MeasuredProblem problem;
  problem.convolution = c;
  problem.result_bytes = c.result_elements() * SizeOf(c.dtype);
  for (const int64_t elements : InputElements(c)) {
    Bytes input(elements * SizeOf(c.dtype));
    FillNormal(c.dtype, random, &input);
    problem.inputs.push_back(std::move(input));
  }
  return problem;
}

double ProblemCache::Entry::Check(const Bytes& result, double limit_multiply_adds) {
  const std::vector<double> got = Decode(problem.convolution.dtype, result);
  if (!std::all_of(got.begin(), got.end(), [](double x) { return std::isfinite(x); })) {
    return std::numeric_limits<double>::infinity();
  }
  if (MultiplyAdds(problem.convolution) > limit_multiply_adds) return -1;
  if (!expected) expected = ComputeExpected(problem);
  return RelativeError(*expected, got);
}

ProblemCache::Entry& ProblemCache::Get(const Convolution& convolution, uint64_t seed) {
  if (last_ && last_->seed == seed && last_->problem.convolution == convolution) return *last_;
  last_.reset();  // first, so that memory holds one at a time
  auto entry = std::make_unique<Entry>();
  std::mt19937_64 random(seed);
  entry->seed = seed;
  entry->problem = MakeProblem(convolution, &random);
  last_ = std::move(entry);
  return *last_;
}

}  // namespace tf_interop
