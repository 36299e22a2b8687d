#include "tests/cc/convolution_cases.h"

#include "tests/cc/reference_convolution.h"

namespace tf_interop {

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

Convolution MakeVolume(ConvolutionKind kind, Layout layout, DataType dtype) {
  Convolution c = MakeConvolution(kind, layout, dtype);
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

std::vector<Convolution> Geometries() {
  std::vector<Convolution> all;
  const auto add = [&all](auto change, bool same) {
    Convolution c = MakeConvolution();
    c.pad_top = c.pad_bottom = c.pad_left = c.pad_right = 0;
    change(&c);
    if (same) {
      CompleteSame(&c);
    } else {
      CompleteFromPads(&c);
    }
    all.push_back(c);
  };
  add([](Convolution*) {}, true);
  add([](Convolution*) {}, false);
  add([](Convolution* c) { c->filter_height = c->filter_width = 1; }, false);
  add([](Convolution* c) { c->filter_height = 2, c->filter_width = 1; }, true);
  add([](Convolution* c) { c->stride_height = c->stride_width = 2; }, true);
  add([](Convolution* c) { c->stride_height = 3, c->stride_width = 1; }, false);
  add([](Convolution* c) { c->dilation_height = 2; }, true);
  add(
      [](Convolution* c) {
        c->dilation_width = 2;
        c->pad_top = 0, c->pad_bottom = 2, c->pad_left = 3, c->pad_right = 1;
      },
      false);
  add([](Convolution* c) { c->pad_top = c->pad_bottom = 2, c->pad_right = 1; }, false);
  add([](Convolution* c) { c->group_count = 2; }, true);
  add(
      [](Convolution* c) {
        c->group_count = 4, c->output_channels = 8;
        c->stride_height = c->stride_width = 2;
      },
      true);
  add([](Convolution* c) { c->group_count = 4, c->output_channels = 4; }, false);
  add([](Convolution* c) { c->output_channels = 1; }, true);
  add([](Convolution* c) { c->image_channels = 1; }, true);
  add([](Convolution* c) { c->batch = 1, c->image_height = c->image_width = 3; }, false);
  return all;
}

std::vector<Convolution> VolumeGeometries() {
  std::vector<Convolution> all;
  const auto add = [&all](auto change, bool same) {
    Convolution c = MakeVolume();
    c.pad_front = c.pad_back = c.pad_top = c.pad_bottom = c.pad_left = c.pad_right = 0;
    change(&c);
    if (same) {
      CompleteSame(&c);
    } else {
      CompleteFromPads(&c);
    }
    all.push_back(c);
  };
  add([](Convolution*) {}, true);
  add([](Convolution*) {}, false);
  add([](Convolution* c) { c->filter_depth = c->filter_height = c->filter_width = 1; }, false);
  add([](Convolution* c) { c->filter_depth = 1; }, true);
  add([](Convolution* c) { c->image_depth = c->filter_depth = 1; }, true);
  add([](Convolution* c) { c->stride_depth = 3, c->stride_height = 2; }, true);
  add([](Convolution* c) { c->filter_depth = 1, c->stride_depth = 2; }, false);
  add([](Convolution* c) { c->dilation_depth = 2, c->dilation_width = 2; }, true);
  add([](Convolution* c) { c->pad_front = 1, c->pad_back = 2, c->pad_bottom = 1; }, false);
  add([](Convolution* c) { c->pad_front = 2, c->pad_top = 1, c->pad_left = 3; }, false);
  add([](Convolution* c) { c->pad_front = c->pad_back = c->pad_left = c->pad_right = 1; }, false);
  add([](Convolution* c) { c->filter_depth = 9, c->filter_width = 7; }, true);
  add([](Convolution* c) { c->image_depth = c->image_height = c->image_width = 1; }, true);
  add([](Convolution* c) { c->group_count = 2; }, true);
  add([](Convolution* c) { c->image_channels = c->output_channels = 1; }, true);
  return all;
}

std::vector<Convolution> WithEveryKindAndLayout(const std::vector<Convolution>& geometries,
                                                DataType dtype) {
  std::vector<Convolution> all;
  for (const Convolution& geometry : geometries) {
    for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                            ConvolutionKind::kBackwardFilter}) {
      for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
        Convolution c = geometry;
        c.kind = kind;
        c.layout = layout;
        c.dtype = dtype;
        all.push_back(c);
      }
    }
  }
  return all;
}

std::vector<Convolution> WithEveryKindLayoutAndType(const std::vector<Convolution>& geometries) {
  std::vector<Convolution> all = WithEveryKindAndLayout(geometries, DataType::kFloat);
  const std::vector<Convolution> halves = WithEveryKindAndLayout(geometries, DataType::kHalf);
  all.insert(all.end(), halves.begin(), halves.end());
  return all;
}

std::vector<Convolution> WithEveryEpilogue(const std::vector<Convolution>& geometries) {
  std::vector<Convolution> all;
  for (const Convolution& geometry : WithEveryKindLayoutAndType(geometries)) {
    if (geometry.kind != ConvolutionKind::kForward) continue;
    for (const bool has_bias : {false, true}) {
      for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                          Activation::kLeakyRelu, Activation::kElu}) {
        Convolution c = geometry;
        c.has_bias = has_bias;
        c.activation = activation;
        if (has_bias || activation != Activation::kNone) all.push_back(c);
      }
    }
  }
  return all;
}

}  // namespace tf_interop
