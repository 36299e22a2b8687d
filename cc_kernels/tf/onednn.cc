#include "cc_kernels/tf/onednn.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tf_interop {
namespace {

// A function of TensorFlow that is in the library with oneDNN in it: CreateStream in mkl_util.h.
constexpr char kNeighbor[] =
    "_ZN10tensorflow12CreateStreamEPN3tsl16OneDnnThreadPoolERKN4dnnl6engineE";
constexpr absl::string_view kPrefix = "dnnl_";

// A file in memory, as long as this lives.
class MappedFile {
 public:
  explicit MappedFile(const char* path) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat status = {};
    if (fstat(file, &status) == 0 && status.st_size > 0) {
      void* const begin = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
      if (begin != MAP_FAILED) bytes_ = {static_cast<const char*>(begin), size_t(status.st_size)};
    }
    close(file);
  }
  ~MappedFile() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // `count` values at an offset; empty if the file is too short.
  template <typename Type>
  absl::Span<const Type> At(uint64_t offset, uint64_t count) const {
    if (offset > bytes_.size() || count > (bytes_.size() - offset) / sizeof(Type)) return {};
    return {reinterpret_cast<const Type*>(bytes_.data() + offset), count};
  }

 private:
  absl::Span<const char> bytes_;
};

// Where the functions with kPrefix are in a library that was loaded at `base` from a file. Leaves
// out those whose code in memory is not the file's.
absl::flat_hash_map<std::string, void*> FindFunctions(const MappedFile& file, char* base) {
  absl::flat_hash_map<std::string, void*> functions;
  const auto header = file.At<ElfW(Ehdr)>(0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0) return functions;
  const auto segments = file.At<ElfW(Phdr)>(header[0].e_phoff, header[0].e_phnum);
  const auto sections = file.At<ElfW(Shdr)>(header[0].e_shoff, header[0].e_shnum);
  const auto is_loaded_code = [&](const ElfW(Sym) & symbol) {
    for (const ElfW(Phdr) & segment : segments) {
      const uint64_t in_segment = symbol.st_value - segment.p_vaddr;
      if (segment.p_type != PT_LOAD || in_segment >= segment.p_filesz) continue;
      const auto code = file.At<char>(segment.p_offset + in_segment, symbol.st_size);
      return !code.empty() && symbol.st_size <= segment.p_filesz - in_segment &&
             std::memcmp(code.data(), base + symbol.st_value, code.size()) == 0;
    }
    return false;
  };
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const ElfW(Shdr) & names = sections[section.sh_link];
    const auto text = file.At<char>(names.sh_offset, names.sh_size);
    const auto symbols = file.At<ElfW(Sym)>(section.sh_offset, section.sh_size / sizeof(ElfW(Sym)));
    for (const ElfW(Sym) & symbol : symbols) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= text.size()) continue;
      const char* const begin = text.data() + symbol.st_name;
      const size_t left = text.size() - symbol.st_name;
      if (left < kPrefix.size() || absl::string_view(begin, kPrefix.size()) != kPrefix) continue;
      const absl::string_view name(begin, strnlen(begin, left));
      if (is_loaded_code(symbol)) functions.try_emplace(name, base + symbol.st_value);
    }
  }
  return functions;
}

bool IsFound(OneDnn* onednn) {
  Dl_info library = {};
  void* const neighbor = dlsym(RTLD_DEFAULT, kNeighbor);
  if (neighbor == nullptr || dladdr(neighbor, &library) == 0) return false;
  const auto functions =
      FindFunctions(MappedFile(library.dli_fname), static_cast<char*>(library.dli_fbase));
  const auto find = [&](const char* name, auto* function) {
    const auto found = functions.find(name);
    if (found == functions.end()) return false;
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found->second);
    return true;
  };
#define TF_INTEROP_FIND(name) \
  if (!find("dnnl_" #name, &onednn->name)) return false;
  TF_INTEROP_ONEDNN_FUNCTIONS(TF_INTEROP_FIND)
#undef TF_INTEROP_FIND
  const dnnl_version_t& version = *onednn->version();
  return version.major == DNNL_VERSION_MAJOR && version.minor == DNNL_VERSION_MINOR &&
         version.cpu_runtime == DNNL_RUNTIME_THREADPOOL &&
         onednn->engine_create(&onednn->engine, dnnl_cpu, 0) == dnnl_success;
}

}  // namespace

const OneDnn* FindOneDnn() {
  static const OneDnn* const found = []() -> const OneDnn* {
    auto onednn = std::make_unique<OneDnn>();
    return IsFound(onednn.get()) ? onednn.release() : nullptr;
  }();
  return found;
}

}  // namespace tf_interop
