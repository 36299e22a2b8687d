// oneDNN's C interface, in the copy of oneDNN that TensorFlow's library contains.
//
// TensorFlow exports none of these functions, so they are found in the symbol table of its
// library's file. What is found is used only if it is the version that this was compiled for, and
// if the code in memory is that of the file.
#ifndef TF_INTEROP_TF_ONEDNN_H_
#define TF_INTEROP_TF_ONEDNN_H_

#include <memory>

// TensorFlow builds oneDNN with this, which gives some functions a second version.
#ifndef DNNL_EXPERIMENTAL_SPARSE
#define DNNL_EXPERIMENTAL_SPARSE
#endif
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_threadpool.h"

#define TF_INTEROP_ONEDNN_FUNCTIONS(_)         \
  _(convolution_forward_primitive_desc_create) \
  _(engine_create)                             \
  _(matmul_primitive_desc_create)              \
  _(memory_create_v2)                          \
  _(memory_desc_clone)                         \
  _(memory_desc_create_with_strides)           \
  _(memory_desc_create_with_tag)               \
  _(memory_desc_destroy)                       \
  _(memory_desc_equal)                         \
  _(memory_desc_get_size_v2)                   \
  _(memory_destroy)                            \
  _(memory_set_data_handle_v2)                 \
  _(post_ops_append_eltwise)                   \
  _(post_ops_append_sum)                       \
  _(post_ops_create)                           \
  _(post_ops_destroy)                          \
  _(primitive_attr_create)                     \
  _(primitive_attr_destroy)                    \
  _(primitive_attr_set_post_ops)               \
  _(primitive_attr_set_scratchpad_mode)        \
  _(primitive_create)                          \
  _(primitive_desc_destroy)                    \
  _(primitive_desc_query_md)                   \
  _(primitive_destroy)                         \
  _(primitive_execute)                         \
  _(reorder_primitive_desc_create)             \
  _(stream_destroy)                            \
  _(threadpool_interop_set_max_concurrency)    \
  _(threadpool_interop_stream_create)          \
  _(version)

namespace tf_interop {

struct OneDnn {
#define TF_INTEROP_DECLARE(name) decltype(&dnnl_##name) name = nullptr;
  TF_INTEROP_ONEDNN_FUNCTIONS(TF_INTEROP_DECLARE)
#undef TF_INTEROP_DECLARE
  dnnl_engine_t engine = nullptr;  // of the CPU
};

// Null if this TensorFlow has no such oneDNN. The first call reads the symbol table of 220 MB,
// which takes 25 ms (AMD EPYC), or longer if it comes from a disk.
const OneDnn* FindOneDnn();

// Destroys what oneDNN's functions made; only for what exists if FindOneDnn is not null.
struct OneDnnDeleter {
  void operator()(dnnl_memory* each) const { FindOneDnn()->memory_destroy(each); }
  void operator()(dnnl_memory_desc* each) const { FindOneDnn()->memory_desc_destroy(each); }
  void operator()(dnnl_post_ops* each) const { FindOneDnn()->post_ops_destroy(each); }
  void operator()(dnnl_primitive* each) const { FindOneDnn()->primitive_destroy(each); }
  void operator()(dnnl_primitive_attr* each) const { FindOneDnn()->primitive_attr_destroy(each); }
  void operator()(dnnl_primitive_desc* each) const { FindOneDnn()->primitive_desc_destroy(each); }
  void operator()(dnnl_stream* each) const { FindOneDnn()->stream_destroy(each); }
};
template <typename Type>
using OneDnnPtr = std::unique_ptr<Type, OneDnnDeleter>;

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_ONEDNN_H_
