#include "tests/cc/convolution_cases.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

namespace tf_interop {
namespace {

// Adds a copy of `base`, without pads, with each of the changes.
void AddChanged(Convolution base, void (*complete)(Convolution*),
                std::initializer_list<void (*)(Convolution*)> changes,
                std::vector<Convolution>* all) {
  base.pad_front = base.pad_back = base.pad_top = base.pad_bottom = 0;
  base.pad_left = base.pad_right = 0;
  for (const auto change : changes) {
    Convolution& c = all->emplace_back(base);
    change(&c);
    complete(&c);
  }
}

}  // namespace

void CompleteSame(Convolution* c) {
  const auto complete = [](int64_t image, int64_t filter, int64_t stride, int64_t dilation,
                           int64_t* output, int64_t* before, int64_t* after) {
    *output = (image + stride - 1) / stride;
    const int64_t total =
        std::max<int64_t>((*output - 1) * stride + (filter - 1) * dilation + 1 - image, 0);
    *before = total / 2;
    *after = total - *before;
  };
  complete(c->image_depth, c->filter_depth, c->stride_depth, c->dilation_depth, &c->output_depth,
           &c->pad_front, &c->pad_back);
  complete(c->image_height, c->filter_height, c->stride_height, c->dilation_height,
           &c->output_height, &c->pad_top, &c->pad_bottom);
  complete(c->image_width, c->filter_width, c->stride_width, c->dilation_width, &c->output_width,
           &c->pad_left, &c->pad_right);
}

void CompleteFromPads(Convolution* c) {
  const auto complete = [](int64_t image, int64_t filter, int64_t stride, int64_t dilation,
                           int64_t pads) {
    return (image + pads - (filter - 1) * dilation - 1) / stride + 1;
  };
  c->output_depth = complete(c->image_depth, c->filter_depth, c->stride_depth, c->dilation_depth,
                             c->pad_front + c->pad_back);
  c->output_height = complete(c->image_height, c->filter_height, c->stride_height,
                              c->dilation_height, c->pad_top + c->pad_bottom);
  c->output_width = complete(c->image_width, c->filter_width, c->stride_width, c->dilation_width,
                             c->pad_left + c->pad_right);
}

Convolution MakeConvolution(ConvolutionKind kind, Layout layout, DataType dtype) {
  Convolution c;
  c.kind = kind;
  c.layout = layout;
  c.dtype = dtype;
  c.batch = 2;
  c.image_height = 6;
  c.image_width = 5;
  c.image_channels = 4;
  c.filter_height = c.filter_width = 3;
  c.output_channels = 6;
  CompleteSame(&c);
  return c;
}

Convolution MakeVolume() {
  Convolution c = MakeConvolution();
  c.spatial_rank = 3;
  c.image_depth = 4;
  c.filter_depth = 2;
  CompleteSame(&c);
  return c;
}

Convolution MakeFused(Layout layout, DataType dtype) {
  Convolution c = MakeConvolution(ConvolutionKind::kForward, layout, dtype);
  c.has_bias = true;
  c.activation = Activation::kRelu;
  return c;
}

Convolution MakeAsymmetric() {
  Convolution c = MakeConvolution();
  c.stride_height = c.stride_width = 2;
  CompleteSame(&c);
  return c;
}

Convolution MakePointwise(int64_t pixels, int64_t image_channels, int64_t output_channels) {
  Convolution c;
  c.batch = c.image_height = c.filter_height = c.filter_width = 1;
  c.image_width = pixels;
  c.image_channels = image_channels;
  c.output_channels = output_channels;
  CompleteSame(&c);
  return c;
}

std::vector<Convolution> Geometries() {
  using C = Convolution;
  std::vector<Convolution> all;
  AddChanged(MakeConvolution(), CompleteSame,
             {[](C*) {}, [](C* c) { c->filter_height = 2, c->filter_width = 1; },
              [](C* c) { c->stride_height = c->stride_width = 2; },
              [](C* c) { c->dilation_height = 2; }, [](C* c) { c->group_count = 2; },
              [](C* c) {
                c->group_count = 4, c->output_channels = 8, c->stride_height = c->stride_width = 2;
              },
              [](C* c) { c->output_channels = 1; }, [](C* c) { c->image_channels = 1; }},
             &all);
  AddChanged(
      MakeConvolution(), CompleteFromPads,
      {[](C*) {}, [](C* c) { c->filter_height = c->filter_width = 1; },
       [](C* c) { c->stride_height = 3, c->stride_width = 1; },
       [](C* c) { c->dilation_width = c->pad_bottom = 2, c->pad_left = 3, c->pad_right = 1; },
       [](C* c) { c->pad_top = c->pad_bottom = 2, c->pad_right = 1; },
       [](C* c) { c->group_count = 4, c->output_channels = 4; },
       [](C* c) { c->batch = 1, c->image_height = c->image_width = 3; }},
      &all);
  return all;
}

std::vector<Convolution> VolumeGeometries() {
  using C = Convolution;
  std::vector<Convolution> all;
  AddChanged(
      MakeVolume(), CompleteSame,
      {[](C*) {}, [](C* c) { c->filter_depth = 1; },
       [](C* c) { c->image_depth = c->filter_depth = 1; },
       [](C* c) { c->stride_depth = 3, c->stride_height = 2; },
       [](C* c) { c->dilation_depth = c->dilation_width = 2; },
       [](C* c) { c->filter_depth = 9, c->filter_width = 7; },
       [](C* c) { c->image_depth = c->image_height = c->image_width = 1; },
       [](C* c) { c->group_count = 2; }, [](C* c) { c->image_channels = c->output_channels = 1; }},
      &all);
  AddChanged(MakeVolume(), CompleteFromPads,
             {[](C*) {}, [](C* c) { c->filter_depth = c->filter_height = c->filter_width = 1; },
              [](C* c) { c->filter_depth = 1, c->stride_depth = 2; },
              [](C* c) { c->pad_front = 1, c->pad_back = 2, c->pad_bottom = 1; },
              [](C* c) { c->pad_front = 2, c->pad_top = 1, c->pad_left = 3; }},
             &all);
  return all;
}

std::vector<Convolution> WithEveryKindAndLayout(const std::vector<Convolution>& geometries,
                                                const std::vector<DataType>& dtypes) {
  std::vector<Convolution> all;
  for (const DataType dtype : dtypes) {
    for (const Convolution& geometry : geometries) {
      for (const auto kind : kKinds) {
        for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
          Convolution& c = all.emplace_back(geometry);
          c.kind = kind;
          c.layout = layout;
          c.dtype = dtype;
        }
      }
    }
  }
  return all;
}

std::vector<Convolution> EveryEpilogue() {
  std::vector<Convolution> all;
  for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kDouble}) {
    for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
      for (const bool has_bias : {false, true}) {
        for (size_t i = 0; i < std::size(kActivationNames); ++i) {
          Convolution& c =
              all.emplace_back(MakeConvolution(ConvolutionKind::kForward, layout, dtype));
          c.has_bias = has_bias;
          c.activation = static_cast<Activation>(i);
        }
      }
    }
  }
  return all;
}

}  // namespace tf_interop
