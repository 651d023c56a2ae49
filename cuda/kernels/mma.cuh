// Products of bfloat16 tiles on the tensor cores, from compute capability 8.0. A
// warp holds a tile in fragments, registers spread over its lanes as PTX's
// mma.m16n8k16 lays them out; with g = lane/4 and t = lane%4:
//
//   a, 16×16: a[0] row g, columns 2t 2t+1; a[1] row g+8; a[2], a[3] the same, columns 8 on
//   b, 16×8:  b[0] rows 2t 2t+1 of column g; b[1] rows 2t+8 2t+9
//   c, 16×8:  c[0] c[1] row g, columns 2t 2t+1; c[2] c[3] row g+8
//
// Tiles in shared memory have rows of PITCH(D) elements: 16 bytes more than they
// need, so that eight rows fall on different banks.
#pragma once
#include "common.cuh"

#define PITCH(D) ((D) + 8)

// c += a·b.
__device__ inline void mma(float *c, const uint32 *a, const uint32 *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline uint32 shared_address(const void *p) {
  uint32 at;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }" : "=r"(at) : "l"(p));
  return at;
}

// Four 8×8 matrices whose rows, 16 bytes each, start where the lanes say: lanes
// 0–7 those of the first, 8–15 of the second, and so on.
__device__ inline void load_matrices(uint32 *r, const bf16 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void load_matrices_transposed(uint32 *r, const bf16 *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// 16 bytes from global to shared memory, in the background; zeros where not
// wanted.
__device__ inline void copy_later(bf16 *to, const bf16 *from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
}

__device__ inline void begin_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all copies but those of the last N begun.
template <int N>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Two floats as a word of two bfloat16, the first in the low half.
__device__ inline uint32 pack(float low, float high) {
  uint32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
