// Package command reads a training command: its words, its environment, and the wrappers and
// launchers in front of the program that trains. It starts nothing.
//
//	Line    what the user typed: words, environment and folder
//	Peel    finds the program that trains, and how many ranks of it are started
//	Exit    how one life of a command ended, with the evidence that it left behind; plain data
package command
