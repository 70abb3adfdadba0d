package a2a
