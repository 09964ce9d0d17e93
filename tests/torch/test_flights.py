"""Gradients in flight arrive in the dims of their weights, or move on in flight."""

import pytest

pytest.importorskip("torch")

import torch

from shardplan.torch.collectives.executor import Flight, _Given
from shardplan.torch.gradients.flights import Flights, Receiver, await_gradients, close, placeholders, receiver_of


class Sent(torch.autograd.Function):
    """A copy of what is read, whose gradient is `gradient`, in flight."""

    @staticmethod
    def forward(ctx, read, gradient):
        ctx.receiver, ctx.gradient = receiver_of(read), gradient
        return read.clone()

    @staticmethod
    def backward(ctx, like):
        return *placeholders(Flight(_Given([ctx.gradient])), [ctx.receiver], [ctx.gradient.shape], like), None


@pytest.mark.parametrize("orders", [(), ((2, 0, 1),), ((-1, 0, 1), (0, 2, 1)), ((1, 2, 0), (1, 0, 2), (2, 0, 1))])
def test_through_permutations(orders):
    weight = torch.randn(2, 3, 4, requires_grad=True)
    (awaited,) = await_gradients([weight])
    read, same = awaited, weight
    for order in orders:
        read, same = read.permute(order), same.permute(order)
    gradient = torch.randn(read.shape)
    Sent.apply(read, gradient).sum().backward()
    (expected,) = torch.autograd.grad(same, weight, gradient)
    assert torch.equal(weight.grad, expected)


def test_several_and_some_that_are_not_in_flight():
    weight, gradient = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
    (awaited,) = await_gradients([weight])
    read = awaited.permute(1, 0)
    (Sent.apply(read, gradient).sum() + Sent.apply(read, 2 * gradient).sum() + (3 * awaited).sum()).backward()
    assert torch.allclose(weight.grad, 3 * gradient.T + 3)


def test_what_computes_receives_nothing():
    weight = torch.randn(2, 3, requires_grad=True)
    (awaited,) = await_gradients([weight])
    for made in (weight, 2 * awaited, awaited[0], torch.randn(2)):
        assert receiver_of(made) is None


def test_what_is_looked_at_is_not_in_flight():
    (awaited,) = await_gradients([torch.randn(2, 3, requires_grad=True)])
    receiver = receiver_of(awaited)
    assert receiver.is_open
    close(awaited.permute(1, 0))
    assert not receiver.is_open


def flying(flights, *numbers):
    """Placeholders of tensors that are in flight, one flight for all of them."""
    flight = Flight(_Given([torch.full((2,), float(number)) for number in numbers]))
    found = [Receiver(flights, number, ()) for number in numbers]
    return placeholders(flight, found, [torch.Size([2])] * len(numbers), torch.zeros(()))


def test_all_that_is_there_moves_on_if_it_is_in_flight():
    flights = Flights()
    two, zero = flying(flights, 2, 0)
    made = flights.moving_on([zero, None, two])
    assert [tensor.tolist() for tensor in made.pending.wait()] == [[0, 0], [2, 2]]
    assert flights.moving_on([zero, None, two]) is None  # once


def test_what_is_not_in_flight_is_awaited():
    flights = Flights()
    (one,) = flying(flights, 1)
    real = torch.ones(2)
    assert flights.moving_on([real, one]) is None
    assert [tensor.tolist() for tensor in flights.arrive([real, one])] == [[1, 1], [1, 1]]
