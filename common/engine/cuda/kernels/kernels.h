#pragma once

#include "common/engine/cuda/kernels/adapter_kernels.h"
#include "common/engine/cuda/kernels/attend_kernel.h"
#include "common/engine/cuda/kernels/attention_kernels.h"
#include "common/engine/cuda/kernels/choice_kernels.h"
#include "common/engine/cuda/kernels/expert_kernels.h"
#include "common/engine/cuda/kernels/head_kernels.h"
#include "common/engine/cuda/kernels/product_kernels.h"
#include "common/engine/cuda/kernels/row_kernels.h"

// All kernels: for interfaces that have one function for each.
#define TANDEM_FOR_EACH_KERNEL(X) \
  X(EmbedKernel)                  \
  X(EmbedInt8Kernel)              \
  X(JoinStatesKernel)             \
  X(JoinNormedPartsKernel)        \
  X(JoinNormedStatesKernel)       \
  X(BeginHeadKernel)              \
  X(AddBlockKernel)               \
  X(RoundInputsKernel)            \
  X(MultiplyInt8Kernel)           \
  X(MultiplyInt4Kernel)           \
  X(MultiplyFp8Kernel)            \
  X(RouteKernel)                  \
  X(ChooseExpertsKernel)          \
  X(GroupExpertsKernel)           \
  X(MultiplyBf16ExpertsKernel)    \
  X(MultiplyInt8ExpertsKernel)    \
  X(MultiplyInt4ExpertsKernel)    \
  X(MultiplyFp8ExpertsKernel)     \
  X(SumExpertsKernel)             \
  X(ReduceKernel)                 \
  X(AddAdapterKernel)             \
  X(AddPartsKernel)               \
  X(NormKernel)                   \
  X(GateKernel)                   \
  X(NormInPlaceKernel)            \
  X(ScaleKernel)                  \
  X(FinalFeaturesKernel)          \
  X(JoinLogitsKernel)             \
  X(PrepareKernel)                \
  X(Attend64Kernel)               \
  X(Attend128Kernel)              \
  X(Attend256Kernel)              \
  X(FoldKernel)                   \
  X(CopyKvKernel)                 \
  X(ChoiceKernel)
