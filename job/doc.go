// Package job turns a configuration into the things that it names: the data, the
// device, the model's trainer, and the options of a session and its run. It is the
// only place that links configs with cuda, model and the embedded device.
package job
