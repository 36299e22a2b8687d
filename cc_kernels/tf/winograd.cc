#include "cc_kernels/tf/winograd.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace tf_interop {
namespace {

constexpr int kSide = 6;  // of a tile's pixels

// The points besides 0 and infinity are ±kA and ±kB. All constants are exact.
constexpr float kA = 0.625F;
constexpr float kB = 1.5F;
constexpr float kA2 = kA * kA;
constexpr float kB2 = kB * kB;

// Channels of a pixel.
using Vector = float __attribute__((vector_size(kWinogradChannels * sizeof(float))));

Vector Load(const float* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

void Store(const Vector& vector, float* to) { std::memcpy(to, &vector, sizeof(vector)); }

using Pixels = std::array<Vector, kSide>;

Pixels TransformPixels(const Pixels& x) {
  const Vector a_even = x[4] - kB2 * x[2];
  const Vector a_odd = kA * x[3] - (kA * kB2) * x[1];
  const Vector b_even = x[4] - kA2 * x[2];
  const Vector b_odd = kB * x[3] - (kB * kA2) * x[1];
  return {(kA2 * kB2) * x[0] - (kA2 + kB2) * x[2] + x[4],
          a_even + a_odd,
          a_even - a_odd,
          b_even + b_odd,
          b_even - b_odd,
          (kA2 * kB2) * x[1] - (kA2 + kB2) * x[3] + x[5]};
}

template <int results>
std::array<Vector, results> TransformProducts(const Pixels& m) {
  const Vector a_even = m[1] + m[2];
  const Vector a_odd = m[1] - m[2];
  const Vector b_even = m[3] + m[4];
  const Vector b_odd = m[3] - m[4];
  const Vector first = m[0] + a_even + b_even;
  const Vector second = kA * a_odd + kB * b_odd;
  if constexpr (results == 2) {
    return {first, second + m[5]};
  } else {
    return {first, second, kA2 * a_even + kB2 * b_even,
            (kA2 * kA) * a_odd + (kB2 * kB) * b_odd + m[5]};
  }
}

// The transpose of TransformProducts.
template <int results>
Pixels TransformGradients(const std::array<Vector, results>& y) {
  Vector a_even = y[0];
  Vector b_even = y[0];
  Vector a_odd = kA * y[1];
  Vector b_odd = kB * y[1];
  if constexpr (results == 4) {
    a_even += kA2 * y[2];
    b_even += kB2 * y[2];
    a_odd += (kA2 * kA) * y[3];
    b_odd += (kB2 * kB) * y[3];
  }
  return {y[0], a_even + a_odd, a_even - a_odd, b_even + b_odd, b_even - b_odd, y[results - 1]};
}

// Where a tile's first result is.
struct Place {
  int64_t image;
  int64_t row;
  int64_t column;
};

Place PlaceOf(const WinogradShape& shape, int64_t tile) {
  const int64_t row = tile / shape.tile_columns();
  return {row / shape.tile_rows(), row % shape.tile_rows() * shape.tile_size(),
          tile % shape.tile_columns() * shape.tile_size()};
}

// As oneDNN's activations, for which a NaN is negative.
Vector Activate(const Vector& value, const FusedOps& fused) {
  const Vector zero = {};
  switch (fused.activation) {
    case FusedActivation::kRelu:
      return fused.slope == 0 ? (value > zero ? value : zero)
                              : (value > zero ? value : fused.slope * value);
    case FusedActivation::kRelu6: {
      const Vector six = zero + 6.0F;
      const Vector positive = value > zero ? value : zero;
      return positive < six ? positive : six;
    }
    default:
      return value;
  }
}

// The results of a tile, of which there are fewer at the edges of an image.
struct TileResults {
  int64_t first;  // as a pixel of all images
  int64_t rows;
  int64_t columns;
};

TileResults ResultsOf(const WinogradShape& shape, int64_t tile) {
  const Place place = PlaceOf(shape, tile);
  return {(place.image * shape.rows + place.row) * shape.columns + place.column,
          std::min(shape.tile_size(), shape.rows - place.row),
          std::min(shape.tile_size(), shape.columns - place.column)};
}

template <int results>
void TransformAll(const WinogradShape& shape, const float* planes, int64_t plane_size,
                  int64_t first, int64_t last, const FusedOps& fused, const float* bias,
                  float* output) {
  for (int64_t tile = first; tile < last; ++tile, planes += shape.channels) {
    const auto [corner, row_count, column_count] = ResultsOf(shape, tile);
    for (int64_t c = 0; c < shape.channels; c += kWinogradChannels) {
      std::array<Pixels, results> rows;
      for (int j = 0; j < kSide; ++j) {
        Pixels column;
        for (int i = 0; i < kSide; ++i) {
          column[i] = Load(planes + (i * kSide + j) * plane_size + c);
        }
        const auto sums = TransformProducts<results>(column);
        for (int i = 0; i < results; ++i) rows[i][j] = sums[i];
      }
      const Vector offset = fused.has_bias ? Load(bias + c) : Vector{};
      for (int64_t i = 0; i < row_count; ++i) {
        const auto sums = TransformProducts<results>(rows[i]);
        float* const row = output + (corner + i * shape.columns) * shape.channels + c;
        for (int64_t j = 0; j < column_count; ++j) {
          float* const result = row + j * shape.channels;
          Vector value = sums[j] + offset;
          if (fused.has_summand) value += Load(result);
          Store(Activate(value, fused), result);
        }
      }
    }
  }
}

template <int results>
void TransformAllGradients(const WinogradShape& shape, const float* gradient, int64_t first,
                           int64_t last, float* planes, int64_t plane_size) {
  for (int64_t tile = first; tile < last; ++tile, planes += shape.channels) {
    const auto [corner, row_count, column_count] = ResultsOf(shape, tile);
    for (int64_t c = 0; c < shape.channels; c += kWinogradChannels) {
      std::array<std::array<Vector, results>, kSide> rows = {};  // transformed columns
      for (int64_t j = 0; j < column_count; ++j) {
        std::array<Vector, results> column = {};
        for (int64_t i = 0; i < row_count; ++i) {
          column[i] = Load(gradient + (corner + i * shape.columns + j) * shape.channels + c);
        }
        const Pixels transformed = TransformGradients<results>(column);
        for (int i = 0; i < kSide; ++i) rows[i][j] = transformed[i];
      }
      for (int i = 0; i < kSide; ++i) {
        const Pixels row = TransformGradients<results>(rows[i]);
        for (int j = 0; j < kSide; ++j) Store(row[j], planes + (i * kSide + j) * plane_size + c);
      }
    }
  }
}

template <int size>
std::array<std::array<float, size>, kSide> FilterTransform() {
  const std::array<double, kSide - 1> points = {0, kA, -kA, kB, -kB};
  std::array<std::array<float, size>, kSide> transform = {};
  for (size_t i = 0; i < points.size(); ++i) {
    double power = 1;
    for (size_t j = 0; j < points.size(); ++j) {
      if (j != i) power /= points[i] - points[j];
    }
    for (int j = 0; j < size; ++j, power *= points[i]) transform[i][j] = static_cast<float>(power);
  }
  transform[kSide - 1][size - 1] = 1;
  return transform;
}

template <int size>
void TransformFilterRows(const float* filter, int64_t rows, int64_t width, int64_t first,
                         int64_t last, bool is_reversed, float* planes) {
  const auto transform = FilterTransform<size>();
  const int64_t pixel = rows * width;
  const int64_t plane_size = WinogradPlaneSize(rows, width);
  for (int64_t at = first * width; at < last * width; at += kWinogradChannels) {
    std::array<std::array<Vector, size>, kSide> columns = {};
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < size; ++j) {
        const int place = i * size + j;
        const Vector value =
            Load(filter + (is_reversed ? size * size - 1 - place : place) * pixel + at);
        for (int k = 0; k < kSide; ++k) columns[k][j] += transform[k][i] * value;
      }
    }
    for (int plane = 0; plane < kWinogradPlanes; ++plane) {
      Vector sum = {};
      for (int j = 0; j < size; ++j) sum += transform[plane % kSide][j] * columns[plane / kSide][j];
      Store(sum, planes + plane * plane_size + at);
    }
  }
}

template <int size>
void TransformSums(const float* planes, int64_t rows, int64_t width, int64_t first, int64_t last,
                   float* filter) {
  const auto transform = FilterTransform<size>();
  const int64_t plane_size = WinogradPlaneSize(rows, width);
  for (int64_t at = first * width; at < last * width; at += kWinogradChannels) {
    std::array<std::array<Vector, size>, size> pixels = {};
    for (int i = 0; i < kSide; ++i) {
      std::array<Vector, size> row = {};
      for (int j = 0; j < kSide; ++j) {
        const Vector sum = Load(planes + (i * kSide + j) * plane_size + at);
        for (int k = 0; k < size; ++k) row[k] += transform[j][k] * sum;
      }
      for (int k = 0; k < size; ++k) {
        for (int l = 0; l < size; ++l) pixels[k][l] += transform[i][k] * row[l];
      }
    }
    for (int k = 0; k < size; ++k) {
      for (int l = 0; l < size; ++l)
        Store(pixels[k][l], filter + (k * size + l) * rows * width + at);
    }
  }
}

}  // namespace

int64_t WinogradPlaneSize(int64_t rows, int64_t columns) {
  constexpr int64_t kLine = 16;
  const int64_t lines = (rows * columns + kLine - 1) / kLine;
  return (lines | 1) * kLine;
}

void TransformWinogradFilter(const float* filter, int64_t filter_size, int64_t rows, int64_t width,
                             int64_t first, int64_t last, bool is_reversed, float* planes) {
  const auto transform = filter_size == 3 ? TransformFilterRows<3> : TransformFilterRows<5>;
  transform(filter, rows, width, first, last, is_reversed, planes);
}

void TransformWinogradTiles(const WinogradShape& shape, const float* image, int64_t first,
                            int64_t last, float* planes, int64_t plane_size) {
  const std::vector<float> padding(shape.depth);
  for (int64_t tile = first; tile < last; ++tile, planes += shape.depth) {
    const Place place = PlaceOf(shape, tile);
    std::array<const float*, kWinogradPlanes> pixels;
    for (int i = 0; i < kWinogradPlanes; ++i) {
      const int64_t row = place.row - shape.above + i / kSide;
      const int64_t column = place.column - shape.left + i % kSide;
      const bool is_inside = row >= 0 && row < shape.height && column >= 0 && column < shape.width;
      pixels[i] = is_inside ? image + ((place.image * shape.height + row) * shape.width + column) *
                                          shape.depth
                            : padding.data();
    }
    for (int64_t c = 0; c < shape.depth; c += kWinogradChannels) {
      std::array<Pixels, kSide> columns;  // transposed
      for (int j = 0; j < kSide; ++j) {
        Pixels column;
        for (int i = 0; i < kSide; ++i) column[i] = Load(pixels[i * kSide + j] + c);
        column = TransformPixels(column);
        for (int i = 0; i < kSide; ++i) columns[i][j] = column[i];
      }
      for (int i = 0; i < kSide; ++i) {
        const Pixels row = TransformPixels(columns[i]);
        for (int j = 0; j < kSide; ++j) Store(row[j], planes + (i * kSide + j) * plane_size + c);
      }
    }
  }
}

void TransformWinogradGradients(const WinogradShape& shape, const float* gradient, int64_t first,
                                int64_t last, float* planes, int64_t plane_size) {
  const auto transform =
      shape.filter_size == 3 ? TransformAllGradients<4> : TransformAllGradients<2>;
  transform(shape, gradient, first, last, planes, plane_size);
}

void TransformWinogradSums(const WinogradShape& shape, const float* planes, int64_t first,
                           int64_t last, float* filter) {
  const auto transform = shape.filter_size == 3 ? TransformSums<3> : TransformSums<5>;
  transform(planes, shape.depth, shape.channels, first, last, filter);
}

void TransformWinogradProducts(const WinogradShape& shape, const float* planes, int64_t plane_size,
                               int64_t first, int64_t last, const FusedOps& fused,
                               const float* bias, float* output) {
  const auto transform = shape.filter_size == 3 ? TransformAll<4> : TransformAll<2>;
  transform(shape, planes, plane_size, first, last, fused, bias, output);
}

}  // namespace tf_interop
