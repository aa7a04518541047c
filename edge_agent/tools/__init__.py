"""Offline tools for models: conversion; quantization with its measurements and report."""
