// Package job turns a configuration into the things that it describes: the data, the
// device, the model's trainer, and the options of a session and its run. The packages of
// the models and devices know nothing of configurations; job connects them.
package job
