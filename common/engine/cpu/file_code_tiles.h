#pragma once

#include <cstdint>

#include "common/engine/cpu/kernel_table.h"
#include "common/model/coded_rows.h"

// Tiles of weights with the codes and scales of their file, as file_code_layout.h describes them.

namespace tandem {

// The format of a Coding that is coded and not of floats.
FileCodeFormat FileCodeFormatOf(const Coding& coding);

uint64_t FileCodeBytes(const FileCodeFormat& format, uint32_t depth);

// Writes a whole tile.
void PackFileCodes(const FileCodeFormat& format, const CodedRows& weights, void* tile);

// The numbers [depth] of an output, as Coding defines them.
void UnpackFileCodes(const FileCodeFormat& format, const void* tile, uint32_t depth, uint32_t output,
                     float* weights);

}  // namespace tandem
