#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/casts.h"
#include "cc_kernels/tf/elementwise.h"
#include "cc_kernels/tf/narrow_device.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {
namespace {

using tensorflow::bfloat16;

// Elements that run through all operations at once.
constexpr int64_t kBlock = 1024;

// a[i * step_a] and b[i * step_b], with steps of 0 or 1. `out` may be `a` or `b`.
template <int step_a, int step_b, typename Op>
void Apply(const float* a, const float* b, float* out, int64_t count, Op op) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) out[i] = op(a[i * step_a], b[i * step_b]);
}

// An operand of a block: one value for each element, or one for all.
struct Values {
  const float* data = nullptr;
  bool is_scalar = false;
  bool is_rounded = true;  // else they are still to be rounded to bfloat16
};

template <typename Op>
void Apply(const Values& a, const Values& b, float* out, int64_t count, Op op) {
  if (b.is_scalar) {
    a.is_scalar ? Apply<0, 0>(a.data, b.data, out, count, op)
                : Apply<1, 0>(a.data, b.data, out, count, op);
  } else {
    a.is_scalar ? Apply<0, 1>(a.data, b.data, out, count, op)
                : Apply<1, 1>(a.data, b.data, out, count, op);
  }
}

// NaN if one of the values is, as in TensorFlow's kernels.
float Maximum(float a, float b) { return (a > b) | (a != a) ? a : b; }
float Minimum(float a, float b) { return (a < b) | (a != a) ? a : b; }

void Apply(Elementwise kind, const Values& a, const Values& b, float* out, int64_t count) {
  switch (kind) {
    case Elementwise::kAdd:
      return Apply(a, b, out, count, [](float x, float y) { return x + y; });
    case Elementwise::kSub:
      return Apply(a, b, out, count, [](float x, float y) { return x - y; });
    case Elementwise::kMul:
      return Apply(a, b, out, count, [](float x, float y) { return x * y; });
    case Elementwise::kDiv:
      return Apply(a, b, out, count, [](float x, float y) { return x / y; });
    case Elementwise::kMaximum:
      return Apply(a, b, out, count, Maximum);
    case Elementwise::kMinimum:
      return Apply(a, b, out, count, Minimum);
    case Elementwise::kCast:
      return;  // it has the values of its operand
    case Elementwise::kSquare:
      return Apply(a, a, out, count, [](float x, float) { return x * x; });
    case Elementwise::kRelu:
      return Apply(a, a, out, count, [](float x, float) { return Maximum(x, 0); });
    case Elementwise::kRelu6:
      return Apply(a, a, out, count, [](float x, float) { return Minimum(Maximum(x, 0), 6); });
  }
}

// Copies `count` values from the one of number `first` on.
void Widen(const Source& from, int64_t first, int64_t count, float* to) {
  if (!from.is_narrow) {
    std::copy_n(static_cast<const float*>(from.data) + first, count, to);
    return;
  }
  const bfloat16* const narrow = static_cast<const bfloat16*>(from.data) + first;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(narrow[i]);
}

// The bits of a value rounded to bfloat16, to nearest with ties to even.
uint32_t RoundedBits(float value) {
  const uint32_t bits = absl::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  return value != value ? 0x7fc00000 : rounded;
}

// `to` may be `from`.
void Round(const float* from, int64_t count, float* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) to[i] = absl::bit_cast<float>(RoundedBits(from[i]));
}

void Narrow(const float* from, int64_t count, bfloat16* to) {
  uint16_t* const bits = reinterpret_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) bits[i] = RoundedBits(from[i]) >> 16;
}

// The blocks that one thread computes.
class Blocks {
 public:
  Blocks(const Pass& pass, void* out)
      : pass_(pass),
        out_(out),
        block_(std::min(kBlock, pass.elements)),
        results_(pass.operations.size() * block_),
        scratch_(block_),
        tiles_(pass.sources.size()),
        widened_(pass.sources.size()),
        values_(pass.operand_count) {}

  void Run(int64_t first, int64_t last, int64_t blocks_of_image) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t image = block / blocks_of_image;
      if (image != image_) SetImage(image);
      const int64_t begin = block % blocks_of_image * kBlock;
      RunBlock(begin, std::min(begin + kBlock, pass_.elements));
    }
  }

 private:
  // Short periods are written so often that a block can begin anywhere.
  void SetImage(int64_t image) {
    for (size_t i = 0; i < tiles_.size(); ++i) {
      const Source& source = pass_.sources[i];
      const bool is_tiled =
          source.period > 1 && source.period <= kBlock && source.period < pass_.elements;
      if (!is_tiled || (image_ >= 0 && source.image_size == 0)) continue;
      tiles_[i].resize(kBlock + source.period);
      for (size_t j = 0; j < tiles_[i].size(); j += source.period) {
        const int64_t count = std::min<int64_t>(source.period, tiles_[i].size() - j);
        Widen(source, image * source.image_size, count, tiles_[i].data() + j);
      }
    }
    image_ = image;
  }

  void RunBlock(int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t stop = end;  // before a long period begins anew
      for (size_t i = 0; i < tiles_.size(); ++i) {
        const Source& source = pass_.sources[i];
        if (source.period > 1 && tiles_[i].empty()) {
          stop = std::min(stop, begin + source.period - begin % source.period);
        }
      }
      for (size_t i = 0; i < tiles_.size(); ++i) SetValues(i, begin, stop - begin);
      Compute(begin, stop - begin);
      begin = stop;
    }
  }

  // The values of a source for a block.
  void SetValues(size_t i, int64_t begin, int64_t count) {
    const Source& source = pass_.sources[i];
    const bool is_scalar = source.period == 1;
    const int64_t phase = source.period > 1 ? begin % source.period : 0;
    const float* data = tiles_[i].data() + phase;
    if (tiles_[i].empty()) {
      const int64_t first = image_ * source.image_size + phase;
      data = static_cast<const float*>(source.data) + first;
      if (source.is_narrow) {
        widened_[i].resize(block_);
        Widen(source, first, is_scalar ? 1 : count, widened_[i].data());
        data = widened_[i].data();
      }
    }
    values_[source.operand] = {data, is_scalar};
  }

  void Compute(int64_t begin, int64_t count) {
    const int64_t first = image_ * pass_.elements + begin;
    float* result = results_.data();
    for (const Operation* const each : pass_.operations) {
      const Operation& operation = *each;
      // `out_` may be an operand's memory, so only the last operation writes it.
      const bool is_last = each == pass_.operations.back();
      float* const to =
          is_last && !operation.is_narrow ? static_cast<float*>(out_) + first : result;
      const Values value = Evaluate(operation, count, result, to);
      if (is_last && operation.is_narrow) {
        Narrow(value.data, count, static_cast<bfloat16*>(out_) + first);
      } else if (is_last && value.data != to) {
        std::copy_n(value.data, count, to);
      }
      values_[operation.result] = value;
      result += block_;
    }
  }

  // The values of an operation. They are those of an operand, or in `result`, or at last in `to`.
  Values Evaluate(const Operation& operation, int64_t count, float* result, float* to) {
    Values value = values_[operation.operands[0]];
    const bool narrows = operation.kind == Elementwise::kCast && operation.is_narrow;
    // Rounding keeps the order of values, zero and six, so it may wait for these.
    const bool may_wait =
        narrows || operation.kind == Elementwise::kRelu || operation.kind == Elementwise::kRelu6;
    if (!may_wait) value = Rounded(value, count, result);
    if (operation.kind == Elementwise::kCast) {
      value.is_rounded = !narrows;
      return value;
    }
    const size_t rounds = std::max<size_t>(operation.operands.size(), 2) - 1;
    for (size_t i = 1; i <= rounds; ++i) {
      const bool is_unary = i >= operation.operands.size();
      const Values other =
          is_unary ? value : Rounded(values_[operation.operands[i]], count, scratch_.data());
      float* const end = i == rounds ? to : result;
      Apply(operation.kind, value, other, end, count);
      const bool is_rounded = !operation.is_narrow || (may_wait && value.is_rounded);
      value = {end, /*is_scalar=*/false, is_rounded};
      if (i < rounds) value = Rounded(value, count, result);
    }
    return value;
  }

  static Values Rounded(const Values& value, int64_t count, float* to) {
    if (value.is_rounded) return value;
    Round(value.data, value.is_scalar ? 1 : count, to);
    return {to, value.is_scalar};
  }

  const Pass& pass_;
  void* const out_;
  const int64_t block_;
  std::vector<float> results_;               // a block for each operation
  std::vector<float> scratch_;               // a block for an operand that is rounded
  std::vector<std::vector<float>> tiles_;    // by source; empty if it is read where it is
  std::vector<std::vector<float>> widened_;  // by source; a block of those that are narrow
  std::vector<Values> values_;               // by operand
  int64_t image_ = -1;
};

}  // namespace

void RunPass(const Pass& pass, const tensorflow::DeviceBase& device, void* out) {
  const int64_t blocks = (pass.elements + kBlock - 1) / kBlock;
  // One operation on a vector of eight and its part of the tensors take about two cycles.
  const int64_t vectors = std::min(kBlock, pass.elements) / 8 + 1;
  const int64_t cycles =
      2 * vectors * static_cast<int64_t>(pass.operations.size() + pass.sources.size());
  DivideWork(device, pass.images * blocks, cycles,
             [&](int64_t first, int64_t last) { Blocks(pass, out).Run(first, last, blocks); });
}

}  // namespace tf_interop
