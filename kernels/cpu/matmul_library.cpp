#include <longstraw/kernels/cpu/matmul.hpp>

#include <dnnl.hpp>

#include <array>
#include <dlfcn.h>
#include <memory>
#include <unordered_map>

namespace longstraw::kernels {
namespace {

using shape = std::array<index, 9>;  // m, n, depth, strides of a and b, stride of c, added to

struct shape_hash {
  std::size_t operator()(const shape& s) const {
    std::uint64_t h = 0;
    for (index x : s) h = (h ^ static_cast<std::uint64_t>(x)) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return static_cast<std::size_t>(h);
  }
};

// A primitive together with the memory objects that its calls reuse.
struct prepared {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, workspace;
  index workspace_floats = 0;
  std::unordered_map<int, dnnl::memory> arguments;
};

class product_cache {
 public:
  product_cache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    // oneDNN must not start threads of its own: the executor's items are the parallelism. Its
    // runtime may be OpenMP or none, so the switch is looked up instead of linked.
    if (void* found = dlsym(RTLD_DEFAULT, "omp_set_num_threads"))
      reinterpret_cast<void (*)(int)>(found)(1);
  }

  void run(mat c, left_factor a, left_factor b, index depth, bool add, scratch& local) {
    const shape key{c.rows,       c.cols,       depth,    a.row_stride, a.col_stride,
                    b.row_stride, b.col_stride, c.stride, add};
    if (!last_ || key != last_key_) {
      auto found = known_.find(key);
      if (found == known_.end()) {
        // Suffix lengths vary without end; what is kept must not.
        if (known_.size() >= kept_shapes_max) known_.clear();
        found = known_.emplace(key, prepare(key)).first;
      }
      last_ = found->second.get();
      last_key_ = key;
    }
    prepared& p = *last_;
    const index mark = local.mark();
    p.a.set_data_handle(const_cast<float*>(a.data));
    p.b.set_data_handle(const_cast<float*>(b.data));
    p.c.set_data_handle(c.data);
    p.workspace.set_data_handle(local.floats(p.workspace_floats).data());
    p.primitive.execute(stream_, p.arguments);
    local.rewind(mark);
  }

 private:
  static constexpr std::size_t kept_shapes_max = 1024;

  std::unique_ptr<prepared> prepare(const shape& s) const {
    using dnnl::memory;
    const auto type = memory::data_type::f32;
    const memory::desc a({s[0], s[2]}, type, memory::dims{s[3], s[4]});
    const memory::desc b({s[2], s[1]}, type, memory::dims{s[5], s[6]});
    const memory::desc c({s[0], s[1]}, type, memory::dims{s[7], 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s[8]) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc plan(engine_, a, b, c, attributes);
#else
    const dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(a, b, c), attributes, engine_);
#endif
    auto p = std::make_unique<prepared>();
    p->primitive = dnnl::matmul(plan);
    p->a = memory(a, engine_, nullptr);
    p->b = memory(b, engine_, nullptr);
    p->c = memory(c, engine_, nullptr);
    p->workspace = memory(plan.scratchpad_desc(), engine_, nullptr);
    p->workspace_floats = static_cast<index>(plan.scratchpad_desc().get_size() + 3) / 4;
    p->arguments = {{DNNL_ARG_SRC, p->a},
                    {DNNL_ARG_WEIGHTS, p->b},
                    {DNNL_ARG_DST, p->c},
                    {DNNL_ARG_SCRATCHPAD, p->workspace}};
    return p;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<shape, std::unique_ptr<prepared>, shape_hash> known_;
  prepared* last_ = nullptr;
  shape last_key_{};
};

// The library copies a transposed left factor whole, so m * depth bounds its workspace.
constexpr index depth_max = 2048;

}  // namespace

void matmul_library(mat c, left_factor a, left_factor b, index depth, into mode, scratch& local) {
  if (c.empty()) return;
  if (depth == 0) {
    if (mode == into::write)
      for (index r = 0; r < c.rows; ++r) std::fill_n(c.row(r), c.cols, 0.0f);
    return;
  }
  thread_local product_cache cache;
  for (index k = 0; k < depth; k += depth_max) {
    const index part = std::min(depth_max, depth - k);
    cache.run(c, {a.data + k * a.col_stride, a.row_stride, a.col_stride},
              {b.data + k * b.row_stride, b.row_stride, b.col_stride}, part,
              mode == into::add || k > 0, local);
  }
}

}  // namespace longstraw::kernels
