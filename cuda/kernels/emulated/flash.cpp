// Runs the kernels of flash.cu without a GPU and compares them with attention in
// double precision.
//
//   flash B T H D OFFSET
//
// Every tensor starts OFFSET elements after a multiple of 16 bytes. The program
// prints the relative errors of out, lse and dqkv.
#include "flash.cu"

#include <vector>

struct tensor {
  std::vector<bf16> room;
  bf16 *at;
  tensor(int n, int offset) : room(n + 16) { at = (bf16 *)(((uintptr_t)room.data() + 15) / 16 * 16) + offset; }
};

// Numbers from a normal distribution, rounded to bfloat16.
void draw(tensor &t, std::vector<double> &values) {
  for (size_t i = 0; i < values.size(); i++) {
    double u = (rand() + 1.) / (RAND_MAX + 2.), v = (rand() + 1.) / (RAND_MAX + 2.);
    t.at[i].bits = (unsigned short)rounded(sqrt(-2 * log(u)) * cos(2 * M_PI * v));
    values[i] = value(t.at[i].bits);
  }
}

template <typename F>
double distance(const std::vector<double> &want, F got) {
  double off = 0, norm = 0;
  for (size_t i = 0; i < want.size(); i++) {
    double d = got(i) - want[i];
    off += d * d, norm += want[i] * want[i];
  }
  return sqrt(off / (norm > 0 ? norm : 1));
}

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  int B = atoi(argv[1]), T = atoi(argv[2]), H = atoi(argv[3]), D = atoi(argv[4]), offset = atoi(argv[5]);
  int n = B * T * H * D, pairs = B * H, blocks = (T + ROWS - 1) / ROWS, by8 = D % 8 == 0 && offset % 8 == 0;
  tensor qkv(3 * n, offset), out(n, offset), dout(n, offset), dqkv(3 * n, offset);
  std::vector<double> x(3 * n), g(n), want_out(n), want_lse(pairs * T), want_dqkv(3 * n);
  std::vector<float> lse(pairs * T), delta(pairs * T);
  draw(qkv, x);
  draw(dout, g);

  for (int p = 0; p < pairs; p++)
    for (int t = 0; t < T; t++) {
      auto part = [&](int i, int which) { return (((long)(p / H) * T + i) * 3 + which) * H * D + p % H * D; };
      long o = ((long)(p / H) * T + t) * H * D + p % H * D;
      std::vector<double> s(t + 1);
      double sum = 0, dot = 0;
      for (int j = 0; j <= t; j++) {
        for (int d = 0; d < D; d++) s[j] += x[part(t, 0) + d] * x[part(j, 1) + d] / sqrt(D);
        sum += exp(s[j]);
      }
      for (int d = 0; d < D; d++) {
        for (int j = 0; j <= t; j++) want_out[o + d] += exp(s[j]) / sum * x[part(j, 2) + d];
        dot += want_out[o + d] * g[o + d];
      }
      want_lse[p * T + t] = log(sum);
      delta[p * T + t] = dot;
      for (int j = 0; j <= t; j++) {
        double probability = exp(s[j]) / sum, slope = 0;
        for (int d = 0; d < D; d++) slope += g[o + d] * x[part(j, 2) + d];
        slope = probability * (slope - dot) / sqrt(D);
        for (int d = 0; d < D; d++) {
          want_dqkv[part(j, 2) + d] += probability * g[o + d];
          want_dqkv[part(t, 0) + d] += slope * x[part(j, 1) + d];
          want_dqkv[part(j, 1) + d] += slope * x[part(t, 0) + d];
        }
      }
    }

  float scale = 1 / sqrt((float)D);
  auto small = D <= 64;
  launch(pairs, blocks, [&] { (small ? flash_64 : flash_128)(out.at, lse.data(), qkv.at, T, H, D, by8, scale); });
  launch(pairs, blocks, [&] {
    (small ? flash_keys_64 : flash_keys_128)(dqkv.at, delta.data(), dout.at, qkv.at, lse.data(), T, H, D, by8, scale);
  });
  launch(pairs, blocks, [&] {
    (small ? flash_queries_64 : flash_queries_128)(dqkv.at, delta.data(), dout.at, qkv.at, lse.data(), T, H, D, by8, scale);
  });
  printf("%.3e %.3e %.3e\n", distance(want_out, [&](size_t i) { return value(out.at[i].bits); }),
         distance(want_lse, [&](size_t i) { return lse[i]; }),
         distance(want_dqkv, [&](size_t i) { return value(dqkv.at[i].bits); }));
}
