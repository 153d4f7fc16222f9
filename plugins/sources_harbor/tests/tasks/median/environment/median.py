import sys

numbers = [float(argument) for argument in sys.argv[1:]]
print(numbers[len(numbers) // 2])
