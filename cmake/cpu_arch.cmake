# Chooses the x86-64 level to compile for. -march=native is not enough: a compiler older than the processor falls back
# to a level without AVX-512. LONGSTRAW_ARCH pins the level, for binaries that must run elsewhere.
set(LONGSTRAW_ARCH "auto" CACHE STRING "auto, or a value for -march such as x86-64-v4, x86-64-v3, x86-64")

if(LONGSTRAW_ARCH STREQUAL "auto")
  include(CheckCXXSourceRuns)
  check_cxx_source_runs(
    "int main() { __builtin_cpu_init();
       return __builtin_cpu_supports(\"avx512f\") && __builtin_cpu_supports(\"avx512bw\") &&
              __builtin_cpu_supports(\"avx512dq\") && __builtin_cpu_supports(\"avx512vl\") ? 0 : 1; }"
    LONGSTRAW_CPU_IS_V4)
  check_cxx_source_runs(
    "int main() { __builtin_cpu_init();
       return __builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\") ? 0 : 1; }"
    LONGSTRAW_CPU_IS_V3)
  if(LONGSTRAW_CPU_IS_V4)
    set(longstraw_march x86-64-v4)
  elseif(LONGSTRAW_CPU_IS_V3)
    set(longstraw_march x86-64-v3)
  else()
    set(longstraw_march "")
  endif()
else()
  set(longstraw_march ${LONGSTRAW_ARCH})
endif()
message(STATUS "LongStraw: compiling for ${longstraw_march}")
