#pragma once
// Views for the plain references. T is deduced from the results; inputs take whatever converts to a
// view on const T. With T = double a reference is the ground truth of the parity tests.

#include <longstraw/memory/view.hpp>

#include <type_traits>

namespace longstraw::kernels::reference {

template <class T>
using in_matrix = matrix_view<const std::type_identity_t<T>>;
template <class T>
using in_heads = heads_view<const std::type_identity_t<T>>;
template <class T>
using in_span = std::span<const std::type_identity_t<T>>;

}  // namespace longstraw::kernels::reference
