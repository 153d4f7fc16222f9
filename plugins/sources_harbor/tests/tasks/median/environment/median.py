import sys

numbers = [float(argument) for argument in sys.argv[1:]]
sys.stdout.write(f"{numbers[len(numbers) // 2]}\n")
