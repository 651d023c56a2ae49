// Package job connects what runs a job.
//
//	Job      turns a configuration into the things that it describes: the data, the device, the
//	         model's trainer, and the options of a session and its run
//	Command  joins the session, the worker and the attempts of a wrapped command
//	Check    tries out what the worker would do for a command
//	Read     finds in a command's script what takes memory without need
//
// The packages of models, devices and commands know nothing of configurations or of each other.
package job
