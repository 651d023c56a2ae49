// Replaces ../mma.cuh when there is no GPU. The 128 threads of a block run as
// fibers of one thread. The tensor core's product and ldmatrix are computed by
// their definitions in the PTX reference, and the lanes of a warp wait for one
// another at each of them, as on a GPU. Shared memory begins as NaN in every
// block. Races between barriers are not detected.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

typedef unsigned int uint32;

#define WARP 32
#define ALL 0xffffffffu
#define PITCH(D) ((D) + 8)
#define __device__
#define __global__
#define __shared__
#define __launch_bounds__(threads)
#define __align__(bytes)
#define __syncthreads block_barrier

struct bf16 {
  unsigned short bits;
};

inline float value(uint32 bits) {
  bits <<= 16;
  float v;
  memcpy(&v, &bits, 4);
  return v;
}

inline uint32 rounded(float v) {
  uint32 u;
  memcpy(&u, &v, 4);
  return (u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

struct index3 {
  int x, y, z;
};
inline index3 threadIdx, blockIdx, gridDim;

// The values that a lane shares with its warp.
struct shown {
  float f;
  uint32 a[4], b[2];
  const bf16 *row;
};

inline const int threads = 128, stack = 256 << 10;
inline shown lanes[threads];
inline ucontext_t scheduler, fibers[threads];
inline bool finished[threads];
inline std::function<void()> *kernel;

inline void others() {
  int me = threadIdx.x;
  swapcontext(&fibers[me], &scheduler);
  threadIdx.x = me;
}

// A barrier for n fibers.
struct barrier {
  int count, turn;
  void wait(int n) {
    int mine = turn;
    if (++count == n) {
      count = 0;
      turn++;
    }
    while (turn == mine) others();
  }
};
inline barrier warps[threads / WARP], block;

inline void block_barrier() { block.wait(threads); }
inline void meet() { warps[threadIdx.x / WARP].wait(WARP); }
inline int lane() { return threadIdx.x % WARP; }
inline shown &of_lane(int l) { return lanes[threadIdx.x / WARP * WARP + l]; }

inline float __shfl_xor_sync(uint32, float v, int d) {
  of_lane(lane()).f = v;
  meet();
  v = of_lane(lane() ^ d).f;
  meet();
  return v;
}

inline float half_of(uint32 word, int high) { return value(high ? word >> 16 : word & 0xffffu); }

inline void mma(float *c, const uint32 *a, const uint32 *b) {
  memcpy(of_lane(lane()).a, a, sizeof of_lane(0).a);
  memcpy(of_lane(lane()).b, b, sizeof of_lane(0).b);
  meet();
  for (int i = 0; i < 4; i++) {
    int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++)
      c[i] += half_of(of_lane(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2], k % 2) *
              half_of(of_lane(column * 4 + k % 8 / 2).b[k / 8], k % 2);
  }
  meet();
}

inline void load_matrices(uint32 *r, const bf16 *row) {
  of_lane(lane()).row = row;
  meet();
  for (int m = 0; m < 4; m++) {
    const bf16 *from = of_lane(8 * m + lane() / 4).row + lane() % 4 * 2;
    r[m] = from[0].bits | (uint32)from[1].bits << 16;
  }
  meet();
}

inline void load_matrices_transposed(uint32 *r, const bf16 *row) {
  of_lane(lane()).row = row;
  meet();
  for (int m = 0; m < 4; m++) {
    int from = 8 * m + lane() % 4 * 2, column = lane() / 4;
    r[m] = of_lane(from).row[column].bits | (uint32)of_lane(from + 1).row[column].bits << 16;
  }
  meet();
}

inline void copy_later(bf16 *to, const bf16 *from, bool wanted) {
  if ((uintptr_t)to % 16 != 0 || (uintptr_t)from % 16 != 0) {
    puts("16 bytes copied that do not begin at a multiple of 16");
    exit(1);
  }
  memset(to, 0, 16);
  if (wanted) memcpy(to, from, 16);
}

inline void begin_copies() {}
template <int N>
inline void wait_for_copies() {}

inline uint32 pack(float low, float high) { return rounded(low) | rounded(high) << 16; }

// The dynamic shared memory of a block.
alignas(16) bf16 tiles[128 << 10];

inline void fiber() {
  (*kernel)();
  finished[threadIdx.x] = true;
  swapcontext(&fibers[threadIdx.x], &scheduler);
}

// Runs a kernel on a grid, block after block.
inline void launch(int x, int y, std::function<void()> f) {
  static char *stacks = (char *)malloc((size_t)threads * stack);
  kernel = &f;
  gridDim = {x, y, 1};
  for (int at = 0; at < x * y; at++) {
    blockIdx = {at % x, at / x, 0};
    for (auto &t : tiles) t.bits = 0x7fc0;
    for (int i = 0; i < threads; i++) {
      finished[i] = false;
      getcontext(&fibers[i]);
      fibers[i].uc_stack.ss_sp = stacks + (size_t)i * stack;
      fibers[i].uc_stack.ss_size = stack;
      makecontext(&fibers[i], fiber, 0);
    }
    for (bool any = true; any;) {
      any = false;
      for (int i = 0; i < threads; i++)
        if (!finished[i]) {
          any = true;
          threadIdx.x = i;
          swapcontext(&scheduler, &fibers[i]);
        }
    }
  }
}
