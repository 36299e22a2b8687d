#include "cc_kernels/tf/primitive_cache.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace tf_interop {

// TensorFlow's MklPrimitive as far as it takes to destroy one: its destructor is its first virtual
// function. Not in the unnamed namespace, where the compiler would know that no class derives from
// this and call no destructor of TensorFlow's.
struct Primitive {  // NOLINT(misc-use-internal-linkage)
  virtual ~Primitive() = 0;
};

namespace {

using tensorflow::DataType;

// The layout of TensorFlow's LRUCache<MklPrimitive>, whose header mkl_util.h does not compile
// without the settings of TensorFlow's own build.
struct Cache {
  struct Entry {
    Primitive* primitive;
    std::list<std::string>::iterator position;
    Entry(Entry&& other) noexcept
        : primitive(std::exchange(other.primitive, nullptr)), position(other.position) {}
    ~Entry() { delete primitive; }
  };

  size_t capacity = 0;
  absl::flat_hash_map<std::string, Entry> entries;
  std::list<std::string> keys;
};

// The factories that TensorFlow has, with their element types as the linker writes them.
struct Factory {
  DataType dtype;
  const char* mangled_type;
};
constexpr std::array<Factory, 5> kFactories = {{{tensorflow::DT_FLOAT, "f"},
                                                {tensorflow::DT_BFLOAT16, "N5Eigen8bfloat16E"},
                                                {tensorflow::DT_HALF, "N5Eigen4halfE"},
                                                {tensorflow::DT_QINT8, "N5Eigen5QInt8E"},
                                                {tensorflow::DT_QUINT8, "N5Eigen6QUInt8E"}}};

void* FindSymbol(const Factory& factory, const char* prefix, const char* suffix) {
  const std::string name =
      absl::StrCat(prefix, "N10tensorflow19MklPrimitiveFactoryI", factory.mangled_type, suffix);
  return dlsym(RTLD_DEFAULT, name.c_str());
}

// The calling thread's cache, or null if there is none. It is a variable of a function, which
// TensorFlow's library exports, so its address is found by name.
Cache* FindWideCache(const Factory& factory) {
  using GetOp = void* (*)(void* factory, const std::string& key);
  const auto get_op = reinterpret_cast<GetOp>(
      FindSymbol(factory, "_Z", "E5GetOpERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"));
  auto* const cache =
      static_cast<Cache*>(FindSymbol(factory, "_ZZ", "E11GetLRUCacheEvE10lru_cache_"));
  if (get_op == nullptr || cache == nullptr) return nullptr;
  // A look-up makes the thread's cache where it has none yet. Factories have no members.
  get_op(nullptr, "");
  return cache;
}

// Of one thread, for one element type.
struct ThreadCache {
  bool is_bound = false;
  Cache* wide = nullptr;
  std::map<int, Cache> narrow;  // by the number of cores
};

void Swap(DataType dtype, int cores) {
  thread_local std::array<ThreadCache, kFactories.size()> caches;
  size_t i = 0;
  while (kFactories[i].dtype != dtype) ++i;
  ThreadCache* const cache = &caches[i];
  if (!cache->is_bound) {
    cache->wide = FindWideCache(kFactories[i]);
    cache->is_bound = true;
  }
  if (cache->wide == nullptr) return;
  const auto [narrow, is_new] = cache->narrow.try_emplace(cores);
  if (is_new) narrow->second.capacity = cache->wide->capacity;
  std::swap(*cache->wide, narrow->second);
}

}  // namespace

std::vector<DataType> PrimitiveCacheTypes(absl::Span<const DataType> dtypes) {
  std::vector<DataType> types;
  if (dtypes.empty()) return types;
  for (const Factory& factory : kFactories) {
    const bool is_used =
        factory.dtype == tensorflow::DT_FLOAT || absl::c_linear_search(dtypes, factory.dtype);
    if (is_used && FindWideCache(factory) != nullptr) types.push_back(factory.dtype);
  }
  return types;
}

NarrowPrimitives::NarrowPrimitives(absl::Span<const DataType> types, int cores)
    : types_(types), cores_(cores) {
  for (const DataType type : types_) Swap(type, cores_);
}

NarrowPrimitives::~NarrowPrimitives() {
  for (const DataType type : types_) Swap(type, cores_);
}

}  // namespace tf_interop
