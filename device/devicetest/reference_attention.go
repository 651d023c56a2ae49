package devicetest

import (
	"math"

	"headroom/device"
)

// inQKV returns the index in qkv of element d of the query, key or value (part 0, 1 or 2) of sample
// b, head h and position t. inOut returns the index in out of element d of the output.
func inQKV(s device.Attention, b, h, t, part, d int) int {
	return (((b*s.T+t)*3+part)*s.H+h)*s.D + d
}

func inOut(s device.Attention, b, h, t, d int) int { return ((b*s.T+t)*s.H+h)*s.D + d }

// refScores returns the scores of query t with keys 0 to t, the keys that it
// sees.
func refScores(qkv []float64, s device.Attention, b, h, t int) []float64 {
	scores := make([]float64, t+1)
	for key := range scores {
		for d := range s.D {
			scores[key] += qkv[inQKV(s, b, h, t, 0, d)] * qkv[inQKV(s, b, h, key, 1, d)] / math.Sqrt(float64(s.D))
		}
	}
	return scores
}

func refAttention(qkv []float64, s device.Attention) (out, lse []float64) {
	out, lse = make([]float64, s.B*s.T*s.H*s.D), make([]float64, s.B*s.H*s.T)
	for b := range s.B {
		for h := range s.H {
			for t := range s.T {
				scores := refScores(qkv, s, b, h, t)
				l := logSumExp(scores)
				lse[(b*s.H+h)*s.T+t] = l
				for key, score := range scores {
					for d := range s.D {
						out[inOut(s, b, h, t, d)] += math.Exp(score-l) * qkv[inQKV(s, b, h, key, 2, d)]
					}
				}
			}
		}
	}
	return out, lse
}

// refAttentionGrad returns dqkv. It goes backwards through the definition: the
// sum over values, the softmax, the scores.
func refAttentionGrad(dout, qkv []float64, s device.Attention) []float64 {
	dqkv := make([]float64, len(qkv))
	for b := range s.B {
		for h := range s.H {
			for t := range s.T {
				refAttentionGradQuery(dqkv, dout, qkv, s, b, h, t)
			}
		}
	}
	return dqkv
}

func refAttentionGradQuery(dqkv, dout, qkv []float64, s device.Attention, b, h, t int) {
	p := refScores(qkv, s, b, h, t)
	l := logSumExp(p)
	dp, avg := make([]float64, len(p)), 0.0
	for key := range p {
		p[key] = math.Exp(p[key] - l)
		for d := range s.D {
			g := dout[inOut(s, b, h, t, d)]
			dp[key] += g * qkv[inQKV(s, b, h, key, 2, d)]
			dqkv[inQKV(s, b, h, key, 2, d)] += p[key] * g
		}
		avg += p[key] * dp[key]
	}
	for key := range p {
		ds := p[key] * (dp[key] - avg) / math.Sqrt(float64(s.D))
		for d := range s.D {
			dqkv[inQKV(s, b, h, t, 0, d)] += ds * qkv[inQKV(s, b, h, key, 1, d)]
			dqkv[inQKV(s, b, h, key, 1, d)] += ds * qkv[inQKV(s, b, h, t, 0, d)]
		}
	}
}
